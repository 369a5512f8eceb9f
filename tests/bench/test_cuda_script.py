"""`bench/cuda.sh`, what an owner of an NVIDIA card runs: here on the CPU, with a tiny model."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import model_files
from headlong.ops.cuda.backend import has_driver
from talking_model import write_talking_model

SCRIPT = Path(__file__).parents[2] / "bench" / "cuda.sh"


def run(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run the script with this interpreter."""
    command = ["bash", str(SCRIPT), *arguments]
    environment = os.environ | {"PYTHON": sys.executable} | settings
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_every_step_runs_and_is_sent_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(model_files.NUM_LAYERS, "llama", 7)  # the fewest a head can tap
    model = write_talking_model(tmp_path / "tiny.gguf", context_length=8192)
    out = tmp_path / "report"
    done = run("--quick", "--model", str(model), str(out), BACKEND="native")
    report = (out / "report.txt").read_text()
    assert done.returncode == 0, report + done.stderr
    for step in ("conditions", "exactness", "pass", "bench", "load"):
        assert f"ok      {step}," in report
    exactness = json.loads((out / "exactness.json").read_text())
    assert exactness["total"]["answers"] >= 40
    assert json.loads((out / "load.out").read_text().splitlines()[-1])
    with tarfile.open(out / "report.tar.gz") as archive:
        assert {"report.txt", "exactness.json", "load.out"} <= set(archive.getnames())


def test_a_step_that_does_not_hold_is_the_status(tmp_path: Path) -> None:
    done = run("--model", "nothing-of-this-name", str(tmp_path), BACKEND="native", ONLY="pass")
    assert done.returncode == 1
    assert "FAILED  pass" in done.stdout


@pytest.mark.skipif(has_driver(), reason="there is a driver")
def test_without_a_card_it_says_so_and_begins_nothing(tmp_path: Path) -> None:
    done = run(str(tmp_path / "report"))
    assert done.returncode == 2
    assert done.stderr.startswith("cuda.sh: There is no NVIDIA driver")
    assert not (tmp_path / "report").exists()
