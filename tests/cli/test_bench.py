"""`headlong bench pass`: a table for people and the numbers on the last line."""

import json
from pathlib import Path

import pytest

from headlong.cli.main import main


def test_last_line_holds_the_numbers(
    tiny_model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["bench", "pass", "-m", str(tiny_model_path), "--rows", "1,2", "--context", "8"]
    assert main([*argv, "--prefill", "16", "--rounds", "2", "--threads", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    document = json.loads(lines[-1])
    assert set(document["rows"]) == {"1", "2"}
    assert document["backend"] == "native"
    assert document["load_s"] > 0
    for name in ("bandwidth_gb_s", "bytes_per_pass", "draft_step_ms", "pick_ms", "python_share"):
        assert name in document
    assert any("memory bandwidth" in line for line in lines)


@pytest.mark.parametrize("rows", ["0", "two", "1,,2", ""])
def test_impossible_row_counts_are_refused(rows: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "pass", "--rows", rows]) == 1
    assert "cannot be measured" in capsys.readouterr().err
