"""`bench/apple.sh`, what an owner of a Mac runs: here on MLX's CPU device, with a tiny model."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from export_parts import write_pair

pytest.importorskip("mlx.core", reason="MLX is not installed: pip install 'headlong[mlx]'")

SCRIPT = Path(__file__).parents[2] / "bench" / "apple.sh"


def run(
    *arguments: str, python: str = sys.executable, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the script with this interpreter, from a folder."""
    command = ["bash", str(SCRIPT), *arguments]
    settings = os.environ | {"PYTHON": python}
    return subprocess.run(
        command, env=settings, cwd=folder, capture_output=True, text=True, check=False
    )


def test_every_step_runs_and_is_sent_back(tmp_path: Path) -> None:
    """Model and report are named as they are seen from where the script is started."""
    model, out = write_pair(tmp_path).model, tmp_path / "report"
    done = run("--quick", "--model", model.name, "report", folder=tmp_path)
    report = (out / "report.txt").read_text()
    assert done.returncode == 0, report + done.stderr
    for step in ("conditions", "exactness", "pass", "bench", "figures"):
        assert f"ok      {step}," in report
    figures = json.loads((out / "figures.json").read_text())
    assert figures["bytes_read_by_rows"]["4"] == figures["weights_bytes"]
    assert figures["round"]["waits_per_round"] == 1
    assert set(figures["passes"]) == {"1", "4"}
    with tarfile.open(out / "report.tar.gz") as archive:
        assert {"report.txt", "figures.json", "pass.out", "bench.out"} <= set(archive.getnames())
        assert {(one.uid, one.uname) for one in archive} == {(0, "")}, "the sender has no name"


def test_a_step_that_fails_is_told(tmp_path: Path) -> None:
    """An interpreter that has everything and runs nothing."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\n[ "$1" = -c ] || [ "$1" = - ]\n')
    python.chmod(0o755)
    done = run("--quick", str(tmp_path / "report"), python=str(python))
    assert done.returncode == 1
    for step in ("exactness", "pass", "bench", "figures"):
        assert f"FAILED  {step} (status 1" in done.stdout
    assert "All that has to hold held" not in done.stdout


def test_an_option_that_is_not_known_is_refused(tmp_path: Path) -> None:
    done = run("--fast", str(tmp_path))
    assert done.returncode == 2
    assert "--fast is not known" in done.stderr
