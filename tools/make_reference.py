"""Write docs/cli.md from the commands' own help, so that it cannot drift.

Run `make docs` after changing a command; `tests/test_reference.py` fails when the page is stale.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "cli.md"


def read_help(*words: str) -> str:
    """Return what `headlong … --help` prints, at a fixed width and without colour."""
    environment = os.environ | {"COLUMNS": "100", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "headlong", *words, "--help"]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout.rstrip()


def list_verbs(overview: str) -> list[str]:
    """Return the verbs that an overview lists; a verb without sub-verbs lists none."""
    if "\nverbs:\n" not in overview:
        return []
    section = overview.split("verbs:\n")[1].split("\n\n")[0]
    return [line.split()[0] for line in section.splitlines()]


def make_page() -> str:
    """Return the whole reference page."""
    overview = read_help()
    parts = ["# Commands", "Made by `make docs` from the commands' own help.", _block(overview)]
    for verb in list_verbs(overview):
        help_text = read_help(verb)
        parts += [f"## headlong {verb}", _block(help_text)]
        for sub_verb in list_verbs(help_text):
            parts += [f"### headlong {verb} {sub_verb}", _block(read_help(verb, sub_verb))]
    return "\n\n".join(parts) + "\n"


def _block(text: str) -> str:
    return f"```text\n{text}\n```"


if __name__ == "__main__":
    PAGE.write_text(make_page())
