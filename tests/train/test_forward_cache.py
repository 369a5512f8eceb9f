"""Hidden rows that are kept: the same as computed, up to a bound of memory."""

from collections.abc import Iterator
from unittest.mock import patch

import numpy as np
import pytest
import torch

from headlong.arrays import IntArray
from headlong.models.hidden import HiddenRows
from headlong.train.forward_cache import ForwardCache
from headlong.train.teacher import Teacher

TAPS = (2, 3, 4)


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    """As in training."""
    with torch.no_grad():
        yield


def some_ids(num_rows: int, length: int = 12) -> IntArray:
    """Padded token ids."""
    return np.random.default_rng(3).integers(8, 266, (num_rows, length))


def assert_equal(rows: HiddenRows, expected: HiddenRows) -> None:
    """Compare all parts."""
    for own, other in zip(rows, expected, strict=True):
        torch.testing.assert_close(own, other)


def test_kept_rows_are_those_of_a_forward_pass_in_any_order(tiny_teacher: Teacher) -> None:
    cache, ids = ForwardCache(tiny_teacher, TAPS, 1 << 30), some_ids(5)
    for order in ([0, 1], [1, 4, 0], [3, 2, 1, 0, 4]):
        expected = tiny_teacher.forward(torch.from_numpy(ids[order]), TAPS)
        assert_equal(cache.forward(ids[order]), expected)


def test_a_sequence_is_run_once(tiny_teacher: Teacher) -> None:
    cache, ids = ForwardCache(tiny_teacher, TAPS, 1 << 30), some_ids(4)
    with patch.object(Teacher, "forward", autospec=True, side_effect=Teacher.forward) as forward:
        cache.forward(ids[:2])
        cache.forward(ids)
        cache.forward(ids)
    assert [len(call.args[1]) for call in forward.call_args_list] == [2, 2]


@pytest.mark.parametrize("taps", [TAPS, ()], ids=["taps", "no taps"])
def test_memory_is_bounded(tiny_teacher: Teacher, taps: tuple[int, ...]) -> None:
    ids = some_ids(4)
    one = ForwardCache(tiny_teacher, taps, 1 << 30)
    one.forward(ids[:1])
    cache = ForwardCache(tiny_teacher, taps, 2 * one._num_bytes)
    for _ in range(2):
        assert_equal(cache.forward(ids), tiny_teacher.forward(torch.from_numpy(ids), taps))
    assert len(cache._rows) == 2
