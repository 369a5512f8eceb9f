"""What is released runs where nothing can be compiled."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from headlong.weights.head_folders import HEAD_FILES, SHIPPED, pull_head
from headlong.weights.progress import LogProgress
from headlong.weights.pypi import WheelPart
from headlong.weights.store import Store
from wheels import use_only_wheels_in

ROOT = Path(__file__).parent.parent


def load_tool(name: str) -> ModuleType:
    """Import a script of tools/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"tools/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def check_wheel() -> ModuleType:
    """The script that tries a wheel."""
    return load_tool("check_wheel")


def _report(backend: str, speed: float, *drafters: str) -> dict[str, Any]:
    """Return the parts of a report of `headlong generate --json` that the check reads."""
    return {
        "backend": backend,
        "backend_note": "for reasons",
        "drafter": "chain",
        "stats": {"num_drafted": len(drafters), "by_drafter": dict.fromkeys(drafters)},
        "timings": {"tokens_per_second": speed},
    }


NUMPY = _report("numpy", 10.0)


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (_report("numpy", 300.0, "head"), "the backend is numpy: for reasons"),
        (_report("native", 300.0), "nothing was drafted"),
        (_report("native", 300.0, "ngram"), "the shipped head was not used"),
        (_report("native", 11.0, "head"), "only 1.1 times as fast as numpy"),
    ],
)
def test_wheel_that_lacks_something_is_refused(
    check_wheel: ModuleType, answer: dict[str, Any], fault: str
) -> None:
    faults = check_wheel.find_faults(answer, NUMPY)
    assert any(one.startswith(fault) for one in faults), faults


def test_whole_wheel_has_no_faults(check_wheel: ModuleType) -> None:
    assert check_wheel.find_faults(_report("native", 300.0, "head", "ngram"), NUMPY) == []


@pytest.mark.slow
def test_without_a_compiler_the_source_installs_on_numpy(tmp_path: Path) -> None:
    """Guards the fallback: a tag for kernels, asked of a wheel without them, breaks it."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    environment = os.environ | {"PATH": str(tmp_path / "env/bin"), "CC": "", "CXX": ""}
    pip = [str(tmp_path / "env/bin/python"), "-m", "pip", "wheel", "--no-deps"]
    subprocess.run([*pip, "-w", str(tmp_path), str(ROOT)], check=True, env=environment)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")


def test_shipped_head_is_what_the_tool_makes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a folder, and as the wheel that `headlong pull` unpacks."""
    tool, own = load_tool("ship_head"), SHIPPED / "smollm2-135m-instruct"
    tool.ship(own, tmp_path / "again")
    part = WheelPart("headlong-head-tiny.1", "0.1.0", "headlong_head")
    use_only_wheels_in(tmp_path / "links", monkeypatch)
    tool.write_wheel(tmp_path / "again", tmp_path / "links", part)
    pulled = pull_head(part, Store(tmp_path / "cache"), LogProgress())
    for name in HEAD_FILES:
        ours = (own / name).read_bytes()
        assert (tmp_path / "again" / name).read_bytes() == ours, name
        assert (pulled / name).read_bytes() == ours, name


def test_a_heads_readme_has_the_acceptance_that_was_decoded(tmp_path: Path) -> None:
    tool, own = load_tool("ship_head"), SHIPPED / "smollm2-135m-instruct"
    run = {"precision": "q4", "temperature": 0.0, "k": 5}
    tasks = {"code": {"acceptance_length": 2.5249, "rounds": 9}}
    document = {"prompts": {"code": 6}, "max_tokens": 256, "results": [run | {"tasks": tasks}]}
    (tmp_path / "eval.json").write_text(json.dumps(document))
    tool.ship(own, tmp_path / "head", tmp_path / "eval.json")
    record = json.loads((tmp_path / "head" / "run.json").read_text())
    assert record["decoded"]["results"] == [run | {"acceptance": {"code": 2.525}}]
    assert "| code | 6 | 2.52 |" in (tmp_path / "head" / "README.md").read_text()
