"""The real default model on the native backend, held against the numpy oracle."""

from pathlib import Path

import numpy as np
import pytest

from headlong.arrays import FloatArray
from headlong.models.registry import load_backbone
from headlong.models.transformer import Backbone
from headlong.ops.native.ops import NativeOps
from headlong.ops.numpy.ops import NumpyOps
from headlong.text.tokenizer import load_tokenizer
from headlong.weights.checkpoint import Checkpoint, open_checkpoint
from native_parts import INSTRUCTION_SETS, native_ops, random_cuts

TEXT = (
    "The city of Lisbon lies on seven hills above the river Tagus. In 1755 an earthquake destroyed "
    "most of it, and the marquis of Pombal had it built again with wide, straight streets. def "
    "fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n"
)


@pytest.fixture(scope="module")
def checkpoint(default_model_path: Path) -> Checkpoint:
    """The default model's file, opened."""
    return open_checkpoint(default_model_path)


@pytest.fixture(scope="module")
def oracle_logits(checkpoint: Checkpoint) -> FloatArray:
    """What the oracle says about every position of the text."""
    return score(load_backbone(checkpoint, NumpyOps()).backbone, text_ids(checkpoint))


def text_ids(checkpoint: Checkpoint) -> list[int]:
    """Return the text's tokens."""
    return list(load_tokenizer(checkpoint).encode(TEXT))


def score(backbone: Backbone, ids: list[int], cuts: list[int] | None = None) -> FloatArray:
    """Return the logits of every position, computed in chunks."""
    cache, parts, start = backbone.make_cache(), [], 0
    for size in cuts or [len(ids)]:
        hidden = backbone.forward([np.array(ids[start : start + size])], [cache])
        cache.commit(size)
        parts.append(backbone.logits(hidden.normed))
        start += size
    return np.concatenate(parts)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_logits_are_near_the_oracle_s(
    checkpoint: Checkpoint, oracle_logits: FloatArray, instruction_set: str
) -> None:
    """8-bit activations move logits by a few percent of their spread; picks rarely change."""
    backbone = load_backbone(checkpoint, native_ops(instruction_set)).backbone
    logits = score(backbone, text_ids(checkpoint))
    error = np.linalg.norm(logits - oracle_logits) / np.linalg.norm(oracle_logits)
    agreement = (logits.argmax(axis=1) == oracle_logits.argmax(axis=1)).mean()
    assert error < 0.05
    assert agreement > 0.9


def test_chunks_and_threads_change_no_bit(checkpoint: Checkpoint) -> None:
    ids = text_ids(checkpoint)
    rng = np.random.default_rng(1)
    whole = None
    for threads in (1, 2):
        backbone = load_backbone(checkpoint, NativeOps(threads)).backbone
        for cuts in ([len(ids)], random_cuts(rng, len(ids)), random_cuts(rng, len(ids))):
            logits = score(backbone, ids, cuts).tobytes()
            whole = whole or logits
            assert logits == whole


def test_another_format_may_be_asked_for(checkpoint: Checkpoint, oracle_logits: FloatArray) -> None:
    """In float32 only the order of sums and the 16-bit cache are left to differ."""
    backbone = load_backbone(checkpoint, NativeOps(2), quant="f32").backbone
    logits = score(backbone, text_ids(checkpoint))
    assert backbone.lm_head.weight.format == "f32"
    assert np.linalg.norm(logits - oracle_logits) / np.linalg.norm(oracle_logits) < 2e-3
