"""Hidden rows that are kept: the same as computed, up to a bound of memory."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch

from headlong.arrays import IntArray
from headlong.models.hidden import HiddenRows
from headlong.train.batches import Batch, make_batch
from headlong.train.forward_cache import ForwardCache
from headlong.train.recorded_states import RecordedStates, states_file, write_states
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


def as_batch(ids: IntArray, answers: Sequence[int] | None = None) -> Batch:
    """A batch of whole sequences."""
    batch = make_batch(list(ids), [3] * len(ids), np.zeros(len(ids), np.float32), ids.shape[1])
    return batch if answers is None else replace(batch, answers=np.array(answers))


def assert_equal(rows: HiddenRows, expected: HiddenRows) -> None:
    """Compare all parts."""
    for own, other in zip(rows, expected, strict=True):
        torch.testing.assert_close(own, other)


def test_kept_rows_are_those_of_a_forward_pass_in_any_order(tiny_teacher: Teacher) -> None:
    cache, ids = ForwardCache(tiny_teacher, TAPS, 1 << 30), some_ids(5)
    for order in ([0, 1], [1, 4, 0], [3, 2, 1, 0, 4]):
        expected = tiny_teacher.forward(torch.from_numpy(ids[order]), TAPS)
        assert_equal(cache.forward(as_batch(ids[order])), expected)


def test_a_sequence_is_run_once(tiny_teacher: Teacher) -> None:
    cache, ids = ForwardCache(tiny_teacher, TAPS, 1 << 30), some_ids(4)
    with patch.object(Teacher, "forward", autospec=True, side_effect=Teacher.forward) as forward:
        cache.forward(as_batch(ids[:2]))
        cache.forward(as_batch(ids))
        cache.forward(as_batch(ids))
    assert [len(call.args[1]) for call in forward.call_args_list] == [2, 2]


@pytest.mark.parametrize("taps", [TAPS, ()], ids=["taps", "no taps"])
def test_memory_is_bounded(tiny_teacher: Teacher, taps: tuple[int, ...]) -> None:
    ids = some_ids(4)
    one = ForwardCache(tiny_teacher, taps, 1 << 30)
    one.forward(as_batch(ids[:1]))
    cache = ForwardCache(tiny_teacher, taps, 2 * one._num_bytes)
    for _ in range(2):
        assert_equal(
            cache.forward(as_batch(ids)), tiny_teacher.forward(torch.from_numpy(ids), taps)
        )
    assert len(cache._rows) == 2


def test_rows_before_the_norm_are_kept_only_for_heads_that_read_them(tiny_teacher: Teacher) -> None:
    """They would be a fifth of the memory."""
    ids = some_ids(2)
    expected = tiny_teacher.forward(torch.from_numpy(ids), TAPS)
    for keeps_raw in (True, False):
        cache = ForwardCache(tiny_teacher, TAPS, 1 << 30, keeps_raw)
        for _ in range(2):
            raw = expected.raw if keeps_raw else expected.nothing
            assert_equal(cache.forward(as_batch(ids)), expected._replace(raw=raw))


def test_recorded_rows_are_read_and_others_computed(tiny_teacher: Teacher, tmp_path: Path) -> None:
    shards = [tmp_path / f"shard-0000{i}.npz" for i in range(3)]
    recording = torch.randn(9, 4 * tiny_teacher.config.hidden_size).bfloat16()
    write_states(states_file(shards[2]), [None, recording])
    recorded = RecordedStates(shards, [2, 1, 2], tiny_teacher.config.hidden_size, len(TAPS))
    cache = ForwardCache(tiny_teacher, TAPS, 1 << 30, keeps_raw=False, recorded=recorded)
    ids = some_ids(2)
    hidden = cache.forward(as_batch(ids, [3, 4]))
    computed = tiny_teacher.forward(torch.from_numpy(ids[:1]), TAPS)
    assert hidden.taps is not None
    assert computed.taps is not None
    torch.testing.assert_close(hidden.taps[:12], computed.taps)
    rows = torch.cat([hidden.normed, hidden.taps], 1)[12:]
    assert torch.equal(rows[:9], recording.float())
    assert not rows[9:].any()


def test_rows_recorded_for_another_head_are_not_used(tiny_teacher: Teacher, tmp_path: Path) -> None:
    shard, hidden_size = tmp_path / "shard-00000.npz", tiny_teacher.config.hidden_size
    write_states(states_file(shard), [torch.zeros(9, 4 * hidden_size)])
    assert len(RecordedStates([shard], [1], hidden_size, len(TAPS))) == 1
    assert not len(RecordedStates([shard], [1], hidden_size, 0))


def test_a_damaged_file_counts_as_not_recorded(tmp_path: Path) -> None:
    shard = tmp_path / "shard-00000.npz"
    states_file(shard).write_bytes(b"cut")
    assert not len(RecordedStates([shard], [1], 8, 3))
