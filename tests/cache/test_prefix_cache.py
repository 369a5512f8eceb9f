"""Kept prefixes: the longest common beginning, the oldest goes first, never a row too many."""

import random
from types import SimpleNamespace

import pytest

from headlong.cache.prefix_cache import Prefix, PrefixCache, common_length
from headlong.cache.sequence_state import SequenceState
from headlong.ops.numpy.weights import NumpyKVLayer


def kept(token_ids: list[int], *, has_memory: bool = False, num_bytes: int = 10) -> Prefix:
    """Return a prefix whose newest token is not in its cache, as requests leave it."""
    cache = SequenceState([NumpyKVLayer(1, 2, 2)])
    cache.append(len(token_ids) - 1)
    cache.commit(len(token_ids) - 1)
    return Prefix(token_ids, cache, "memory" if has_memory else None, num_bytes=num_bytes)


def test_common_length_is_the_first_difference() -> None:
    rng = random.Random(1)
    for _ in range(300):
        ours = [rng.randrange(3) for _ in range(rng.randrange(100))]
        theirs = list(ours[: rng.randrange(100)]) + [rng.randrange(3) for _ in range(5)]
        expected = 0
        while expected < min(len(ours), len(theirs)) and ours[expected] == theirs[expected]:
            expected += 1
        assert common_length(ours, tuple(theirs)) == expected


def test_last_row_of_a_prompt_always_runs() -> None:
    prefix = kept([1, 2, 3, 4, 5, 6])
    assert prefix.num_shared([1, 2, 3], has_drafter=False) == 2
    assert prefix.num_shared([1, 2, 3, 9, 9], has_drafter=False) == 3
    assert prefix.num_shared([1, 2, 3, 4, 5, 6, 7], has_drafter=False) == 5, "rows in the cache"
    assert prefix.num_shared([9, 1], has_drafter=False) == 0


def test_drafters_row_needs_the_token_behind_it() -> None:
    prefix = kept([1, 2, 3, 4, 5, 6], has_memory=True)
    assert prefix.num_shared([1, 2, 3, 9, 9], has_drafter=True) == 2
    assert prefix.num_shared([1, 2, 3, 4, 5, 6, 7], has_drafter=True) == 5
    assert prefix.num_shared([9], has_drafter=True) == 0


def test_row_that_waits_can_be_paired_with_another_token() -> None:
    prefix = kept([1, 2, 3, 4, 5, 6], has_memory=True)
    for num_waiting, expected in ((2, 2), (3, 3), (5, 3)):
        prefix.backlog = SimpleNamespace(num_rows=num_waiting)
        found = prefix.num_shared([1, 2, 3, 9, 9], has_drafter=True, lets_wait=True)
        assert found == expected
        assert prefix.num_shared([1, 2, 3, 9, 9], has_drafter=True) == 2, "it is to be looked at"


def test_prefix_without_memory_serves_only_plain_requests() -> None:
    assert kept([1, 2, 3, 4]).num_shared([1, 2, 3, 4], has_drafter=True) == 0


def test_bytes_are_bounded_and_the_oldest_goes() -> None:
    cache = PrefixCache(limit_bytes=25)
    first, second, third = kept([1, 2, 3]), kept([4, 5, 6]), kept([7, 8, 9])
    for one in (first, second):
        cache.keep(one)
    cache.touch(first, 12)
    cache.keep(third)
    assert list(cache) == [first, third]
    assert cache.num_bytes == 22


def test_longer_prefix_replaces_what_it_covers() -> None:
    """A conversation leaves one entry, not one per turn."""
    cache = PrefixCache(limit_bytes=100)
    cache.keep(kept([1, 2, 3]))
    longer = kept([1, 2, 3, 4, 5])
    cache.keep(longer)
    assert list(cache) == [longer]


def test_memory_is_not_replaced_by_a_prefix_without_it() -> None:
    cache = PrefixCache(limit_bytes=100)
    cache.keep(kept([1, 2, 3], has_memory=True))
    cache.keep(kept([1, 2, 3, 4, 5]))
    assert len(cache) == 2


@pytest.mark.parametrize("prefix", [kept([1, 2, 3], num_bytes=200), kept([1])])
def test_too_large_or_empty_ones_are_not_kept(prefix: Prefix) -> None:
    cache = PrefixCache(limit_bytes=100)
    cache.keep(prefix)
    assert len(cache) == 0
    assert cache.num_bytes == 0
