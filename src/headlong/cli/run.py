"""`headlong run MODEL [PROMPT…]`: chat with a model, or answer one prompt.

In:  a model by its name, pulled if it is not here; words, files, and what is piped in.
Out: with any of these one answer, as `headlong generate` gives it; otherwise a chat.
"""

import argparse
import re
import sys
from pathlib import Path

from headlong.cli import chat, generate
from headlong.cli.model_arguments import add_model_arguments
from headlong.cli.output import add_json_argument, read_stdin
from headlong.cli.sampling_arguments import (
    add_mtp_argument,
    add_sampling_arguments,
    add_thinking_arguments,
    read_generate_options,
)
from headlong.config import MODEL_OPTIONS
from headlong.errors import RequestError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the verb's options."""
    parser.usage = "headlong run [MODEL] [options] [PROMPT ...]"
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help=MODEL_OPTIONS["model"].metadata["about"]
    )
    parser.add_argument(
        "prompt",
        nargs="*",
        metavar="PROMPT",
        help="prompt to answer; piped input is appended to it; without either, a chat begins",
    )
    parser.add_argument(
        "--file",
        "-f",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="put this text file behind the prompt, under its name; may be repeated",
    )
    chat.add_chat_arguments(parser)
    add_mtp_argument(parser)
    add_thinking_arguments(parser)
    add_json_argument(parser)
    add_model_arguments(parser, *(name for name in MODEL_OPTIONS if name != "model"))
    add_sampling_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Answer what was given, or talk."""
    if not args.prompt and not args.file and sys.stdin.isatty():
        return chat.run(args)
    if args.resume is not None:
        raise RequestError(
            "--resume was given with a prompt, which is answered by itself.",
            "Leave one of them out; `headlong chat --resume` takes messages from a pipe too.",
        )
    options = read_generate_options(args)
    piped = "" if sys.stdin.isatty() else read_stdin(whole=True)
    parts = [" ".join(args.prompt), *(_read_file(path) for path in args.file), piped.rstrip("\n")]
    text = "\n\n".join(part for part in parts if part.strip())
    if not text:
        raise RequestError(
            "The prompt is empty, and standard input too.",
            'Say something: headlong run smollm2 "Hello". In a terminal, without a prompt, a chat '
            "begins.",
        )
    return generate.answer(args, generate.make_messages(text, args.system), options)


def _read_file(path: Path) -> str:
    """Return a file as a part of a prompt: its name, and its text between marks."""
    try:
        text = path.expanduser().read_text("utf-8").rstrip("\n")
    except UnicodeDecodeError as error:
        raise RequestError(f"{path} is not text: {error}.", "Give a text file in UTF-8.") from error
    except OSError as error:
        raise RequestError(
            f"{path} cannot be read: {error.strerror}.", "Check the path."
        ) from error
    # Longer than any mark inside the file, so that none of them ends it.
    marks = "`" * max([3, *(len(marks) + 1 for marks in re.findall("`{3,}", text))])
    return f"{path.name}:\n{marks}\n{text}\n{marks}"
