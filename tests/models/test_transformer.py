"""The backbone frame: caches, taps and batches leave every bit of a row alone."""

from collections.abc import Callable

import numpy as np
import pytest

from headlong.arrays import FloatArray, IntArray
from headlong.models.transformer import Backbone
from model_files import ARCHITECTURES, EVERY_BACKBONE, HYBRID, MIXTURE

Maker = Callable[[str], Backbone]


def token_ids(seed: int, length: int) -> IntArray:
    """Return reproducible token ids."""
    return np.random.default_rng(seed).integers(3, 90, length)


def run(backbone: Backbone, ids: IntArray, cuts: list[int]) -> FloatArray:
    """Run one sequence in passes of the given sizes; return all logits."""
    cache = backbone.make_cache()
    parts = []
    for part in np.split(ids, np.cumsum(cuts)[:-1]):
        parts.append(backbone.logits(backbone.forward([part], [cache]).normed))
        cache.commit(len(part))
    return np.concatenate(parts)


@pytest.mark.parametrize("architecture", EVERY_BACKBONE)
def test_chunks_change_no_bit(tiny_backbone: Maker, architecture: str) -> None:
    backbone, ids = tiny_backbone(architecture), token_ids(1, 30)
    whole = run(backbone, ids, [30])
    for cuts in ([1] * 30, [7, 7, 7, 9], [29, 1], [1, 16, 13]):
        assert run(backbone, ids, cuts).tobytes() == whole.tobytes(), cuts


@pytest.mark.parametrize("architecture", EVERY_BACKBONE)
def test_batch_mates_change_no_bit(tiny_backbone: Maker, architecture: str) -> None:
    backbone = tiny_backbone(architecture)
    sequences = [token_ids(seed, length) for seed, length in ((2, 5), (3, 17), (4, 1), (5, 9))]
    caches = [backbone.make_cache() for _ in sequences]
    together = backbone.logits(backbone.forward(sequences, caches).normed)
    alone = np.concatenate([run(backbone, ids, [len(ids)]) for ids in sequences])
    assert together.tobytes() == alone.tobytes()


@pytest.mark.parametrize("architecture", EVERY_BACKBONE)
def test_refused_rows_leave_no_trace(tiny_backbone: Maker, architecture: str) -> None:
    backbone, ids = tiny_backbone(architecture), token_ids(6, 12)
    cache = backbone.make_cache()
    backbone.forward([ids[:6]], [cache])
    cache.commit(6)
    backbone.forward([token_ids(7, 5)], [cache])  # a draft …
    cache.commit(0)  # … of which no token is accepted
    rest = backbone.logits(backbone.forward([ids[6:]], [cache]).normed)
    assert rest.tobytes() == run(backbone, ids, [12])[6:].tobytes()


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, HYBRID, MIXTURE])
def test_native_agrees_with_the_oracle(tiny_backbone: Maker, architecture: str) -> None:
    """Guards fields of a spec that a backend leaves out; 8-bit activations move logits by less."""
    ids = token_ids(10, 30)
    expected = run(tiny_backbone(architecture), ids, [30])
    found = run(tiny_backbone(f"{architecture}@native"), ids, [30])
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert error < 2e-3


def test_taps_are_inputs_of_layers_in_the_order_asked(tiny_backbone: Maker) -> None:
    backbone, ids = tiny_backbone("llama"), token_ids(8, 4)
    hidden = backbone.forward([ids], [backbone.make_cache()], (2, 0))
    assert hidden.taps is not None
    second, first = np.split(hidden.taps, 2, axis=-1)
    assert np.array_equal(first, backbone.embed(ids))
    assert not np.array_equal(second, first)


def test_no_taps_when_none_are_asked_for(tiny_backbone: Maker) -> None:
    backbone = tiny_backbone("llama")
    assert backbone.forward([token_ids(9, 3)], [backbone.make_cache()]).taps is None


def test_who_reads_nothing_of_a_pass_still_gets_its_rows(tiny_backbone: Maker) -> None:
    backbone = tiny_backbone("llama")
    hidden = backbone.forward([token_ids(9, 3)], [backbone.make_cache()])
    assert hidden.nothing.shape == (len(hidden.raw), 0)
