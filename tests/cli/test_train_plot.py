"""Plots are drawn from logs, also from logs that a kill cut short."""

import json
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from headlong.cli.train_plot import draw_acceptance, draw_training


def test_a_cut_log_is_drawn(tmp_path: Path) -> None:
    records = [
        {"stage": "train", "step": step, "loss": 3 / step, "overlap": [0.5, 0.4]}
        for step in (1, 2, 3)
    ]
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(map(json.dumps, records)) + '\n{"stage": "tr')
    path = draw_training(log, tmp_path / "out")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_acceptance_is_drawn_over_k(tmp_path: Path) -> None:
    path = draw_acceptance({"code": [1.5, 2.0], "qa": [1.3, 1.6]}, [1, 2], tmp_path / "a.png")
    assert path.stat().st_size > 1000
