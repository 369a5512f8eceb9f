"""One vector for a prompt, whatever way the prompt was cut."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from fakes import make_sequence
from headlong.decode.pooling import PooledRows, Pooling
from headlong.decode.prefill import PromptChunk, prefill
from headlong.models.transformer import Backbone

PROMPT = list(range(20, 37))


@pytest.mark.parametrize("kind", ["mean", "last"])
def test_cutting_changes_no_bit(tiny_backbone: Callable[[str], Backbone], kind: Pooling) -> None:
    backbone = tiny_backbone("llama")
    hidden = backbone.forward([np.array(PROMPT)], [backbone.make_cache()], ()).normed
    rows = backbone.ops.to_host(hidden).astype(np.float64)
    expected = rows[-1] if kind == "last" else rows.mean(axis=0)
    expected /= np.linalg.norm(expected)
    vectors = []
    for chunk_size in (1, 5, 16, 100):
        sequence = make_sequence(PROMPT, backbone.make_cache(), None, backbone.config.vocab_size)
        sequence.request = replace(sequence.request, pooling=kind)
        while not sequence.has_begun:
            num_rows = min(chunk_size, sequence.num_rows_left)
            prefill([PromptChunk(sequence, num_rows)], backbone, None)
        assert sequence.pooled is not None
        vectors.append(sequence.pooled.vector())
    assert vectors[0] == vectors[1] == vectors[2] == vectors[3]
    assert vectors[0] == pytest.approx(expected.tolist())


def test_rows_that_run_again_count_once() -> None:
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    once, again = PooledRows("mean"), PooledRows("mean")
    once.add(0, rows)
    again.add(0, rows[:3])
    again.add(0, rows[:2])
    again.add(2, rows[2:])
    assert once.vector() == again.vector()
    assert np.linalg.norm(once.vector()) == pytest.approx(1)


def test_rows_that_cancel_out_give_zeros() -> None:
    pooled = PooledRows("mean")
    pooled.add(0, np.array([[1, 2], [-1, -2]], dtype=np.float32))
    assert pooled.vector() == [0, 0]
