"""Folders that mlx-lm itself converted give mlx-lm's own logits and greedy tokens."""

import json

import numpy as np
import pytest

from golden_models import GOLDEN
from headlong.models.registry import load_backbone
from headlong.ops.backends import make_ops
from headlong.weights.checkpoint import open_checkpoint
from headlong.weights.tensors import AffineType

FOLDERS = {
    "mlx-llama3-rope": {8},
    "mlx-deepseek_v3": {4, 6},
    "mlx-qwen3_5_moe": {4},
}
"""Made by `golden/make_mlx_folders.py`, with the bits that are in them."""


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("backend", ["numpy", "torch", "mlx"])
def test_a_folder_gives_what_mlx_lm_computes_from_it(name: str, backend: str) -> None:
    if backend == "mlx":
        pytest.importorskip("mlx.core")
    golden = json.loads((GOLDEN / name / "golden.json").read_text())
    checkpoint = open_checkpoint(GOLDEN / name)
    types = {tensor.type for tensor in checkpoint.tensors.values()}
    assert {one.bits for one in types if isinstance(one, AffineType)} == FOLDERS[name]
    backbone = load_backbone(checkpoint, make_ops(backend)).backbone
    ids, num_prompt = [*golden["token_ids"], *golden["greedy"]], len(golden["token_ids"])
    hidden = backbone.forward([np.array(ids)], [backbone.make_cache()])
    logits = backbone.logits(hidden.normed)
    assert np.abs(logits[:num_prompt] - golden["logits"]).max() < 2e-4
    assert logits.argmax(axis=1)[num_prompt - 1 : -1].tolist() == golden["greedy"]
