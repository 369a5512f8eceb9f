"""How every verb writes: consoles, sizes, errors, and the JSON line.

In:  what a verb wants to say.
Out: text for people, or one JSON document on the last line of standard output.
With `--json` the text for people goes to standard error, so that a pipe carries JSON only.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from headlong.errors import HeadlongError, RequestError

# A terminal must not obey a model or its file: escape sequences could retitle it or worse.
_UNSAFE = dict.fromkeys((*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0)), "�")


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    """Give a verb its `--json`."""
    help_text = "write one JSON document to standard output; text for people goes to standard error"
    parser.add_argument("--json", action="store_true", help=help_text)


def make_console(*, stderr: bool = False) -> Console:
    """Return a console for standard output or standard error; NO_COLOR is honoured."""
    return Console(stderr=stderr, highlight=False, markup=False)


def write_json(document: dict[str, Any]) -> None:
    """Write the JSON line."""
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def printable(text: str) -> str:
    """Return text without control characters; tabs and line breaks stay."""
    return text.translate(_UNSAFE)


def print_error(error: HeadlongError) -> None:
    """Print what is wrong and what to do about it on standard error."""
    console = make_console(stderr=True)
    # A pipe gets two lines; in a terminal, words stay whole.
    is_whole = not console.is_terminal
    problem = Text.assemble(("error: ", "bold red"), printable(error.problem))
    console.print(problem, soft_wrap=is_whole)
    if error.remedy:
        remedy = Text.assemble(("  → ", "bold green"), printable(error.remedy))
        console.print(remedy, soft_wrap=is_whole)


def read_stdin(*, whole: bool) -> str:
    """Return all of standard input, or its next line with its end ("" when there is none).

    Always read as UTF-8: under another locale the text would reach the model garbled in silence.
    """
    stream: Any = getattr(sys.stdin, "buffer", sys.stdin)
    try:
        data: str | bytes = stream.read() if whole else stream.readline()
        text = data if isinstance(data, str) else data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"Standard input is not text: {error}.", "Pipe text in UTF-8 into headlong."
        ) from error
    return text.replace("\r\n", "\n")


def format_bytes(num_bytes: int) -> str:
    """Write a size for people, in decimal units: 98.4 MB."""
    if num_bytes < 1_000:
        return f"{num_bytes} B"
    for unit, size in (("kB", 1e3), ("MB", 1e6)):
        if num_bytes < size * 999.95:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes / 1e9:.2f} GB"


def format_path(path: Path) -> str:
    """Write a path for people, with ~ for the home folder."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
