"""Imports point one way: every first-party import goes to the same room or to one below it."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "headlong"

ROOMS = (
    ("__main__",),
    ("cli",),
    ("headlong",),  # the package itself: its lazy public names
    ("train",),
    ("export",),
    ("doctor",),
    ("bench", "server"),
    ("mlx_lm",),
    ("llm",),
    ("generation",),
    ("prompt",),
    ("fleet",),
    ("engine",),
    ("decode",),
    ("drafters",),
    ("heads",),
    ("models",),
    ("cache",),
    ("ops",),
    ("text",),
    ("weights",),
    ("config", "provenance"),
    ("errors", "arrays"),
)
"""From the front doors down; a room may import rooms to its right and itself."""

LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}

LAZY = {
    "__init__.py",
    "cli/main.py",
    "weights/sources.py",
    # Verbs that work on numbers themselves: only `run` needs them, `--help` must not wait.
    "cli/bench.py",
    "cli/bench_compare.py",
    "cli/bench_grid.py",
    "cli/bench_load.py",
    "cli/bench_pass.py",
    "cli/convert.py",
    "cli/doctor.py",
    "cli/doctor_engines.py",
    "cli/eval_head.py",
    "cli/export.py",
    "cli/inspect.py",
    "cli/plan.py",
    "cli/serve.py",
}
"""The only files that may import first-party modules inside functions, for a fast start-up."""

FILES = sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))


def room_of(module: str) -> str:
    """Return the room of a dotted first-party module name."""
    return module.removeprefix("headlong.").split(".")[0]


def first_party_imports(tree: ast.AST) -> list[tuple[ast.stmt, str]]:
    """List every import of `headlong.…` below `tree` with its module name."""
    found: list[tuple[ast.stmt, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "headlong":
            module = node.module or ""
            names = (
                [f"{module}.{alias.name}" for alias in node.names]
                if module == "headlong"
                else [module]
            )
            found += [(node, name) for name in names]
        elif isinstance(node, ast.Import):
            found += [(node, a.name) for a in node.names if a.name.split(".")[0] == "headlong"]
    return found


@pytest.mark.parametrize("name", [name for name in FILES if name != "__init__.py"])
def test_imports_point_downward(name: str) -> None:
    own_room = name.split("/")[0].removesuffix(".py")
    for node, module in first_party_imports(ast.parse((SOURCE / name).read_text())):
        room = room_of(module)
        is_allowed = room == own_room or LEVEL[room] > LEVEL[own_room]
        assert is_allowed, f"{name}:{node.lineno} imports {module}, which is above {own_room}"


@pytest.mark.parametrize("name", [name for name in FILES if name not in LAZY])
def test_no_import_hides_in_a_function(name: str) -> None:
    for function in ast.walk(ast.parse((SOURCE / name).read_text())):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            hidden = [module for _, module in first_party_imports(function)]
            assert not hidden, f"{name}: {function.name} imports {hidden}"


def test_every_room_is_placed() -> None:
    rooms = {name.split("/")[0].removesuffix(".py") for name in FILES} - {"__init__"}
    assert rooms <= set(LEVEL), f"give these a level: {rooms - set(LEVEL)}"


ABOVE_ENGINE = [
    name
    for name in FILES
    if LEVEL.get(name.split("/")[0].removesuffix(".py"), 99) < LEVEL["engine"]
]
CLIENT_MODULES = {f"headlong.engine.{name}" for name in ("client", "request", "limits")}
ENGINE_BUILDERS = {"llm.py", "doctor/exactness.py", "train/rows.py"}
"""The only files above the engine that may build a local one."""


@pytest.mark.parametrize("name", ABOVE_ENGINE)
def test_only_the_engine_client_is_seen_from_above(name: str) -> None:
    """Another engine must fit in without a change above: its streams have no local insides."""
    tree = ast.parse((SOURCE / name).read_text())
    allowed = CLIENT_MODULES | ({"headlong.engine.engine"} if name in ENGINE_BUILDERS else set())
    for node, module in first_party_imports(tree):
        assert room_of(module) != "engine" or module in allowed, f"{name}:{node.lineno}: {module}"
        if module == "headlong.engine.request" and isinstance(node, ast.ImportFrom):
            assert "Running" not in [alias.name for alias in node.names], f"{name}:{node.lineno}"
    insides = {"sequence", "policy", "outbox", "num_emitted"}
    insides |= {"backbone"} if name.startswith("server/") else set()
    for read in (node for node in ast.walk(tree) if isinstance(node, ast.Attribute)):
        assert read.attr not in insides, f"{name}:{read.lineno} reads .{read.attr}"


ABOVE_THE_RUNNER = ("cli", "doctor", "bench", "server", "llm", "generation", "engine")

EXAMINERS = ("doctor", "bench")
"""These look into models on purpose, through the op set."""

BACKEND_MODULES = ("_native", "native", "numpy", "torch", "mlx", "cuda")
"""The backends in `ops/`; `ops/backends.py` alone may look them up."""

MEASURES_DEVICES = "bench/round_cost.py"
"""Measures rounds where a device makes them, so it must know the device's parts."""


@pytest.mark.parametrize(
    "name", [n for n in FILES if n.split("/")[0].removesuffix(".py") in ABOVE_THE_RUNNER]
)
def test_nothing_above_the_runner_touches_logits_or_a_backend(name: str) -> None:
    """Rows and picks cross the runner; arrays of logits and backends stay below it."""
    for node, module in first_party_imports(ast.parse((SOURCE / name).read_text())):
        is_array = module == "headlong.arrays" and not name.startswith(EXAMINERS)
        assert not is_array, f"{name}:{node.lineno} handles arrays of the model"
        if module.startswith("headlong.ops"):
            names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            parts = [module.removeprefix("headlong.ops.").removeprefix("headlong.ops"), *names]
            is_backend = any(part.split(".")[0] in BACKEND_MODULES for part in parts)
            assert not is_backend or name == MEASURES_DEVICES, (
                f"{name}:{node.lineno} imports a backend's module"
            )
    if name.startswith(("engine/", "server/")) or name == "generation.py":
        assert "numpy" not in (SOURCE / name).read_text(), f"{name} needs no arrays"
