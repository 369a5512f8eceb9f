"""What is released runs where nothing can be compiled."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def check_wheel() -> ModuleType:
    """The script that tries a wheel."""
    spec = importlib.util.spec_from_file_location("check_wheel", ROOT / "tools/check_wheel.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
