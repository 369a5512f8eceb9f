"""`bench/exactness.py`: it compares what it says, and finds an engine that breaks the promise."""

import importlib.util
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from export_parts import write_pair
from headlong.arrays import FloatArray
from headlong.decode import round as rounds
from headlong.decode.outcome import Verdict
from headlong.decode.sampling import Sampler

SCRIPT = Path(__file__).parents[2] / "bench" / "exactness.py"

Run = Callable[[], tuple[int, dict[str, Any]]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the script on a tiny model; returns its exit status and its report."""
    spec = importlib.util.spec_from_file_location("exactness", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "exactness", module)
    spec.loader.exec_module(module)
    model, out = write_pair(tmp_path).model, tmp_path / "out.json"
    told = ["--model", str(model), "--answers", "60", "--streams", "6", "--tokens", "80"]
    # It says one letter over and over in every other answer, which n-grams guess.
    stutter = {"logit_bias": {66: 100.0}}
    monkeypatch.setattr(
        module, "KINDS", [dict(kind) | extra for kind in module.KINDS for extra in ({}, stutter)]
    )
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *told, "--json", str(out)])

    def run() -> tuple[int, dict[str, Any]]:
        status: int = module.main()
        return status, json.loads(out.read_text())

    return run


def test_all_answers_are_compared(run: Run) -> None:
    status, report = run()
    assert status == 0
    assert report["total"]["answers"] >= 60
    assert report["total"]["wrong_tokens"] == 0
    assert report["total"]["accepted"] > 0
    assert report["conditions"]["short memory"]["preemptions"] > 0
    assert report["total"]["prefix_hit_tokens"] > 0


def test_a_draft_that_is_believed_is_found(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def believe(draft_ids: Sequence[int], logits: FloatArray, sampler: Sampler) -> Verdict:
        picks = []
        for draft_id, row in zip([*draft_ids, None], logits, strict=True):
            pick = sampler.pick(row)
            picks.append(pick if draft_id is None else pick._replace(token_id=draft_id))
            sampler.push(picks[-1].token_id)
        return Verdict(tuple(picks), num_accepted=len(picks) - 1)

    monkeypatch.setattr(rounds, "accept", believe)
    status, report = run()
    assert status == 1
    assert report["total"]["wrong_tokens"] > 0
    assert report["total"]["first"]["mtp"] != "off"
