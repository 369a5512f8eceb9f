"""`headlong bench compare`: two folders in, a verdict out, different prompts refused."""

import json
from pathlib import Path

import pytest

from bench_parts import make_document, make_pairs
from headlong.cli.main import main


def write(path: Path, base_s: float, prompt_hash: str = "0123") -> str:
    rows = make_pairs({"code": [1.4, 1.5, 1.6, 1.5]}, base_s=base_s)
    prompts = {"source": "p.jsonl", "num": 4, "hash": prompt_hash, "skipped": []}
    path.write_text(json.dumps(make_document(rows, prompts=prompts)))
    return str(path)


def test_best_sides_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = write(tmp_path / "old.json", 2.0), write(tmp_path / "new.json", 1.0)
    assert main(["bench", "compare", old, new]) == 0
    shown = capsys.readouterr().out
    assert "new is faster than old: 2.00 × [2.00–2.00]." in shown
    assert "Measured at different times" in shown


def test_another_side_can_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = write(tmp_path / "old.json", 2.0), write(tmp_path / "new.json", 1.0)
    assert main(["bench", "compare", old, new, "--side", "off", "--json", "--quiet"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["sides"][0]["label"].startswith("MTP off, measured 2026-01-01")


def test_different_prompts_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = write(tmp_path / "old.json", 2.0), write(tmp_path / "new.json", 1.0, "4567")
    assert main(["bench", "compare", old, new]) == 1
    error = capsys.readouterr().err
    assert "did not ask the same prompts" in error
    assert "Measure again with the old prompts: p.jsonl." in error


def test_missing_results_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    assert "cannot be read" in capsys.readouterr().err
