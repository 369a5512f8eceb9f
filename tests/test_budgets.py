"""Sizes that keep files readable: one room per file, functions that fit a screen."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAX_FILE_LINES = 350
MAX_FUNCTION_LINES = 60
MAX_ARGUMENTS = 6
MAX_NESTING = 3

FORBIDDEN_NAMES = ("utils", "util", "common", "misc", "helpers", "helper", "core")

FILES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("src", "tests", "csrc", "bench", "examples")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".cpp", ".hpp"}
)
PYTHON_FILES = [name for name in FILES if name.endswith(".py")]

BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.AsyncFor, ast.AsyncWith, ast.Match)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(name: str) -> list[Function]:
    """List all functions and methods of a file."""
    tree = ast.parse((ROOT / name).read_text())
    return [node for node in ast.walk(tree) if isinstance(node, Function)]


def is_triton_kernel(function: Function) -> bool:
    """Tell whether a function is compiled by Triton."""
    return any("triton.jit" in ast.unparse(decorator) for decorator in function.decorator_list)


def nesting(node: ast.AST) -> int:
    """Return how deep blocks stand in one another; `elif` is no deeper than its `if`."""
    deepest = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.ClassDef | ast.Lambda):
            continue
        is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and child in node.orelse
        adds = 1 if isinstance(child, BLOCKS) and not is_elif else 0
        deepest = max(deepest, adds + nesting(child))
    return deepest


@pytest.mark.parametrize("name", FILES)
def test_files_hold_one_room(name: str) -> None:
    assert len((ROOT / name).read_text().splitlines()) <= MAX_FILE_LINES
    assert Path(name).stem not in FORBIDDEN_NAMES


@pytest.mark.parametrize("name", PYTHON_FILES)
def test_functions_fit_a_screen(name: str) -> None:
    for function in functions(name):
        length = (function.end_lineno or 0) - function.lineno + 1
        assert length <= MAX_FUNCTION_LINES, f"{function.name} has {length} lines"
        if is_triton_kernel(function):
            continue  # pointers and strides come one by one; Triton takes no records
        arguments = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
        named = [a for a in arguments if a.arg not in ("self", "cls")]
        assert len(named) <= MAX_ARGUMENTS, f"{function.name} takes {len(named)} arguments"
        assert nesting(function) <= MAX_NESTING, f"{function.name} nests {nesting(function)} deep"


@pytest.mark.parametrize("name", [name for name in PYTHON_FILES if name.startswith("src/")])
def test_public_functions_are_documented(name: str) -> None:
    tree = ast.parse((ROOT / name).read_text())
    assert ast.get_docstring(tree), f"{name} does not say what it is"
    documented = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for node in ast.walk(tree):
        if (
            isinstance(node, documented)
            and not node.name.startswith("_")
            and not _is_local(node, tree)
        ):
            assert ast.get_docstring(node), f"{name}: {node.name} has no docstring"


def _is_local(node: ast.AST, tree: ast.AST) -> bool:
    """Tell whether a definition stands inside a function."""
    return any(
        node in ast.walk(parent)
        for parent in ast.walk(tree)
        if isinstance(parent, Function) and parent is not node
    )
