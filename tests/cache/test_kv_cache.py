"""The books of a KV cache: appended is pending, committed stays, truncated is gone."""

import numpy as np
import pytest

from headlong.cache.kv_cache import GROWTH, KVCache
from headlong.ops.numpy_ops import NumpyKVLayer


@pytest.fixture
def cache() -> KVCache:
    """A cache of two layers with two heads of size four."""
    return KVCache([NumpyKVLayer(2, 4), NumpyKVLayer(2, 4)])


def test_append_returns_position_behind_pending(cache: KVCache) -> None:
    assert cache.append(3) == 0
    assert cache.append(2) == 3
    assert (cache.length, cache.num_pending) == (0, 5)


def test_commit_keeps_leading_rows_only(cache: KVCache) -> None:
    cache.append(5)
    cache.commit(2)
    assert (cache.length, cache.num_pending) == (2, 0)
    assert cache.append(1) == 2, "refused rows must leave no entries behind"


def test_truncate_takes_committed_rows_back(cache: KVCache) -> None:
    cache.append(5)
    cache.commit(5)
    cache.append(2)
    cache.truncate(3)
    assert (cache.length, cache.num_pending) == (3, 0)


@pytest.mark.parametrize("too_many", [4, -1])
def test_commit_beyond_pending_is_our_bug(cache: KVCache, too_many: int) -> None:
    cache.append(3)
    with pytest.raises(AssertionError):
        cache.commit(too_many)


def test_truncate_beyond_length_is_our_bug(cache: KVCache) -> None:
    with pytest.raises(AssertionError):
        cache.truncate(1)


def test_growing_keeps_what_was_written(cache: KVCache) -> None:
    layer = cache.layers[0]
    assert isinstance(layer, NumpyKVLayer)
    keys = np.arange(3 * 2 * 4, dtype=np.float32).reshape(3, 2, 4)
    cache.append(3)
    layer.write(0, keys, -keys)
    cache.commit(3)
    cache.append(GROWTH)
    assert np.array_equal(layer.keys[:, :3], keys.swapaxes(0, 1))
    assert np.array_equal(layer.values[:, :3], -keys.swapaxes(0, 1))


def test_bytes_follow_the_room_made(cache: KVCache) -> None:
    assert cache.num_bytes == 0
    cache.append(1)
    assert cache.num_bytes == 2 * 2 * (2 * GROWTH * 4) * 4  # layers, k and v, values, float32
