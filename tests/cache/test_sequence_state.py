"""The counts of a sequence's state: appended is pending, committed stays, rolled back is gone."""

from collections.abc import Callable

import numpy as np
import pytest

from headlong.cache.sequence_state import GROWTH, SequenceState
from headlong.llm import LLM
from headlong.models.transformer import Backbone
from headlong.ops.backends import make_ops
from headlong.ops.native.ops import NativeOps
from headlong.ops.numpy.weights import NumpyKVLayer


@pytest.fixture
def cache() -> SequenceState:
    """A state of two layers with two heads of size four."""
    return SequenceState([NumpyKVLayer(2, 4, 4), NumpyKVLayer(2, 4, 4)])


def test_append_returns_position_behind_pending(cache: SequenceState) -> None:
    assert cache.append(3) == 0
    assert cache.append(2) == 3
    assert (cache.length, cache.num_pending) == (0, 5)


def test_commit_keeps_leading_rows_only(cache: SequenceState) -> None:
    cache.append(5)
    cache.commit(2)
    assert (cache.length, cache.num_pending) == (2, 0)
    assert cache.append(1) == 2, "refused rows must leave no entries behind"


def test_rollback_drops_pending_rows_only(cache: SequenceState) -> None:
    cache.append(5)
    cache.commit(5)
    cache.append(2)
    cache.rollback()
    assert (cache.length, cache.num_pending) == (5, 0)


def test_state_that_is_taken_over_can_begin_shorter(cache: SequenceState) -> None:
    cache.append(5)
    cache.commit(5)
    cache.append(2)
    cache.fork_in_place(3)
    assert (cache.length, cache.num_pending) == (3, 0)


def test_layer_that_stands_twice_counts_once_and_stays_one() -> None:
    """Layers that read another one's keys and values have its state (Gemma 4)."""
    one, other = NumpyKVLayer(2, 4, 4), NumpyKVLayer(2, 4, 4)
    shared = SequenceState([one, other, other, one])
    assert shared.bytes_for(10) == SequenceState([one, other]).bytes_for(10)
    shared.append(5)
    shared.commit(5)
    other.write(0, np.ones((5, 2, 4), np.float32), np.ones((5, 2, 4), np.float32))

    def make_empty() -> SequenceState:
        empty = [NumpyKVLayer(2, 4, 4), NumpyKVLayer(2, 4, 4)]
        return SequenceState([*empty, *reversed(empty)])

    forked = shared.fork(3, make_empty)
    assert forked.layers[1] is forked.layers[2]
    held = forked.layers[1]
    assert isinstance(held, NumpyKVLayer)
    assert held is not other
    assert held.keys[:, :3].all()


@pytest.mark.parametrize("too_many", [4, -1])
def test_commit_beyond_pending_is_our_bug(cache: SequenceState, too_many: int) -> None:
    cache.append(3)
    with pytest.raises(AssertionError):
        cache.commit(too_many)


@pytest.mark.parametrize("verb", ["fork", "fork_in_place"])
def test_going_beyond_the_length_is_our_bug(cache: SequenceState, verb: str) -> None:
    with pytest.raises(AssertionError):
        cache.fork_in_place(1) if verb == "fork_in_place" else cache.fork(1, lambda: cache)


def test_growing_keeps_what_was_written(cache: SequenceState) -> None:
    layer = cache.layers[0]
    assert isinstance(layer, NumpyKVLayer)
    keys = np.arange(3 * 2 * 4, dtype=np.float32).reshape(3, 2, 4)
    cache.append(3)
    layer.write(0, keys, -keys)
    cache.commit(3)
    cache.append(GROWTH)
    assert np.array_equal(layer.keys[:, :3], keys.swapaxes(0, 1))
    assert np.array_equal(layer.values[:, :3], -keys.swapaxes(0, 1))


def test_bytes_follow_the_room_made(cache: SequenceState) -> None:
    assert cache.num_bytes == 0
    cache.append(1)
    assert cache.num_bytes == 2 * 2 * (2 * GROWTH * 4) * 4  # layers, k and v, values, float32


def test_promised_bytes_are_the_bytes_taken(cache: SequenceState) -> None:
    for num_rows in (1, 3, GROWTH, 5 * GROWTH, 7):
        promised = cache.bytes_for(cache.length + num_rows)
        cache.append(num_rows)
        cache.commit(num_rows)
        assert cache.num_bytes == promised
        assert cache.num_bytes == sum(
            layer.num_bytes for layer in cache.layers if layer is not None
        )


def test_known_end_keeps_growth_small(cache: SequenceState) -> None:
    cache.reserve(10 * GROWTH)
    cache.max_length = 10 * GROWTH + 1
    cache.append(10 * GROWTH + 1)
    assert cache.num_bytes == cache.bytes_for(11 * GROWTH)


def test_shape_mismatch_is_never_copied() -> None:
    ops = make_ops("auto")
    if not isinstance(ops, NativeOps):
        pytest.skip("only compiled layers can be written beyond their end")
    small, large = ops.engine.make_kv_layer(2, 8, 8), ops.engine.make_kv_layer(3, 8, 8)
    large.reserve(GROWTH)
    with pytest.raises(ValueError, match="same shape"):
        small.copy_from(large, 4)
    with pytest.raises(ValueError, match="same shape"):
        ops.engine.make_kv_layer(3, 8, 6).copy_from(large, 4)
    with pytest.raises(ValueError, match="does not hold"):
        ops.engine.make_kv_layer(3, 8, 8).copy_from(large, GROWTH + 1)


def test_values_may_have_another_width_than_keys() -> None:
    make = NativeOps(1).engine.make_kv_layer
    native = [make(3, *sizes).bytes_per_position for sizes in ((64, 64), (96, 64), (64, 128))]
    assert [num_bytes - native[0] for num_bytes in native[1:]] == [3 * 32 * 2, 3 * 64 * 2]
    layer = NumpyKVLayer(3, 24, 16)
    layer.reserve(2)
    layer.write(1, np.ones((1, 3, 24), np.float32), np.ones((1, 3, 16), np.float32))
    layer.reserve(4)
    assert layer.bytes_per_position == 3 * (24 + 16) * 4
    assert (layer.keys[:, 1] == 1).all()
    assert (layer.values[:, 1] == 1).all()


@pytest.mark.parametrize("num_rows", [0, 1, 15, 16, 17, 63, 64, 65, 99])
def test_forked_rows_are_as_good_as_computed_ones(
    default_llm: LLM, tiny_backbone: Callable[[str], Backbone], num_rows: int
) -> None:
    """Compiled layers lie in blocks of positions, so every place inside a block must work."""
    for backbone in (default_llm.backbone, tiny_backbone("gemma3")):
        token_ids = np.arange(5, 5 + 100) % 90
        cache = backbone.make_cache()
        whole = backbone.forward([token_ids], [cache]).normed
        cache.commit(len(token_ids))
        forked = cache.fork(num_rows, backbone.make_cache)
        cache.fork_in_place(1)
        backbone.forward([token_ids[:0:-1].copy()], [cache])  # the original is written over
        rest = backbone.forward([token_ids[num_rows:]], [forked]).normed
        assert np.array_equal(rest, whole[num_rows:])
