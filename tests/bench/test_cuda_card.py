"""`bench/cuda_card.py`, what is run first on a card: rehearsed on the CPU, with tiny shapes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import model_files
from talking_model import write_talking_model

pytest.importorskip("torch")
pytest.importorskip("triton")

BENCH = Path(__file__).parents[2] / "bench"


def rehearse(out: Path, *told: str) -> str:
    """Run parts of the script; return what it said."""
    command = [sys.executable, str(BENCH / "cuda_card.py"), *told, "--rehearse", "--out", str(out)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_part_runs_and_leaves_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(model_files.NUM_LAYERS, "llama", 7)  # the fewest a head can tap
    model = write_talking_model(tmp_path / "tiny.gguf", context_length=8192)
    told = ("--model", str(model), "--answers", "20", "--seconds", "200")
    said = rehearse(tmp_path, "checks", "speed", "exact", *told)
    assert "failed: nothing" in said
    found = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in
             ("checks", "speed", "exact", "exactness")}  # fmt: skip
    assert found["checks"]["kernels"]["twin 1"]["status"] == 0
    assert {"plain", "bandwidth", "levels", "prefill", "code", "streams"} <= set(
        found["speed"]["found"]
    )
    assert found["exactness"]["total"]["answers"] >= 15


def test_where_time_is_up_no_step_begins(tmp_path: Path) -> None:
    rehearse(tmp_path, "profile", "--seconds", "0")
    entries = json.loads((tmp_path / "profile.json").read_text())
    assert entries["large"] == entries["small"] == "left out"
