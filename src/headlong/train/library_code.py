"""Library code: questions about functions and small classes of Python's standard library.

In:  templates of questions about a piece of code. Out: (text, set name) pairs.
Prompt files ask for new code. Users also ask to explain, change, test and port existing code.
"""

import ast
import sysconfig
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

LIBRARY = "python_library"
"""The set's name; its licence is the Python Software Foundation's."""
LIBRARY_LICENCE = "PSF-2.0"

_MIN_LINES, _MAX_LINES, _MAX_CHARS = 6, 45, 1600
_LEFT_OUT = {"test", "tests", "idlelib", "lib2to3", "site-packages", "encodings", "turtledemo"}


def library_questions(tasks: Sequence[str]) -> list[tuple[str, str]]:
    """Ask about every piece of code, with the templates in rotation."""
    return [
        (tasks[number % len(tasks)].format(code=code), LIBRARY)
        for number, code in enumerate(_pieces(Path(sysconfig.get_path("stdlib"))))
    ]


def _pieces(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*.py")):
        if _LEFT_OUT.isdisjoint(path.relative_to(folder).parts):
            yield from _pieces_of(path)


def _pieces_of(path: Path) -> Iterator[str]:
    try:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (OSError, UnicodeDecodeError, SyntaxError):  # some test files are invalid on purpose
        return
    lines = source.splitlines()
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        stop = node.end_lineno or node.lineno
        code = textwrap.dedent("\n".join(lines[node.lineno - 1 : stop]))
        if _MIN_LINES <= stop - node.lineno + 1 <= _MAX_LINES and len(code) <= _MAX_CHARS:
            yield code
