"""EAGLE-3 heads that other projects wrote, against what `speculators` computes with them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from golden_models import GOLDEN
from headlong.heads.eagle3 import Eagle3Head
from headlong.heads.head_files import load_head
from headlong.models.registry import load_backbone
from headlong.ops.backends import make_ops
from headlong.weights.checkpoint import open_checkpoint

FOLDER = GOLDEN / "speculators-head"
FILES = (FOLDER, FOLDER / "converted.gguf")
"""The folder that speculators saved, and what llama.cpp's converter made of it."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
@pytest.mark.parametrize("backend", ["numpy", "native"])
def test_logits_are_those_of_speculators(path: Path, backend: str) -> None:
    model = open_checkpoint(GOLDEN / "tiny-llama3-rope")
    head = load_head(path, load_backbone(model, make_ops(backend)).backbone)
    golden: dict[str, Any] = json.loads((FOLDER / "golden.json").read_text())
    assert isinstance(head, Eagle3Head)
    assert (head.tap_layers, head.report.unused_tensors) == ((1, 2, 3), ())
    assert head.vocabulary is not None
    assert head.vocabulary.tolist() == golden["vocabulary"]
    rng = np.random.default_rng(golden["features_seed"])
    num_rows = len(golden["first"])
    features = rng.standard_normal((num_rows, 3 * 32)).astype(np.float32)
    ids, cache = rng.integers(0, 64, num_rows), head.make_cache()
    states = head.step(head.enter(features), [ids], [cache])
    second = head.step(states[-1:], [np.array([0])], [cache])
    for found, expected in ((states, golden["first"]), (second, [golden["second"]])):
        logits, wanted = head.logits(found), np.array(expected)
        # The native backend keeps keys and values in 16 bits.
        assert np.abs(logits - wanted).max() < (1e-4 if backend == "numpy" else 5e-3)
        assert (logits.argmax(-1) == wanted.argmax(-1)).all()
