"""Hidden rows that are kept: the same as computed, up to a bound of memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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


@dataclass(frozen=True)
class Stored:
    """Answers of some shards."""

    shards: tuple[Path, ...]
    shard_sizes: tuple[int, ...]
    lengths: IntArray


def stored(folder: Path, shards: dict[str, list[torch.Tensor | None]], length: int = 10) -> Stored:
    """Answers with these hidden rows."""
    paths = tuple(folder / f"{name}.npz" for name in shards)
    for path, states in zip(paths, shards.values(), strict=True):
        write_states(states_file(path), states)
    sizes = tuple(map(len, shards.values()))
    return Stored(paths, sizes, np.full(sum(sizes), length))


def test_recorded_rows_are_read_and_others_computed(tiny_teacher: Teacher, tmp_path: Path) -> None:
    hidden_size = tiny_teacher.config.hidden_size
    recording = torch.randn(9, 4 * hidden_size).bfloat16()
    answers = stored(tmp_path, {"a": [None, None], "b": [None], "c": [None, recording]})
    recorded = RecordedStates(answers, hidden_size, len(TAPS))
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


def test_a_head_without_taps_reads_rows_recorded_with_them(tmp_path: Path) -> None:
    recording = torch.randn(9, 32)
    recorded = RecordedStates(stored(tmp_path, {"a": [recording]}), hidden_size=8, num_taps=0)
    rows = recorded.read(0, 9, torch.float32)
    assert rows is not None
    assert torch.equal(rows.normed, recording[:, :8])
    assert rows.taps is None


@pytest.mark.parametrize("shape", [(9, 24), (8, 32), (10, 32)], ids=["width", "fewer", "more"])
def test_rows_that_do_not_fit_their_answer_are_not_used(
    tmp_path: Path, shape: tuple[int, int]
) -> None:
    """One answer's do not fit, another's do."""
    answers = stored(tmp_path, {"a": [torch.zeros(shape), torch.zeros(9, 32)]})
    recorded = RecordedStates(answers, hidden_size=8, num_taps=3)
    assert len(recorded) == 1
    assert recorded.read(0, 12, torch.float32) is None


def test_rows_of_more_answers_than_a_shard_has_are_not_used(tmp_path: Path) -> None:
    answers = stored(tmp_path, {"a": [None, torch.zeros(9, 8)], "b": [None]})
    cut = replace(answers, shard_sizes=(1, 2))
    assert not len(RecordedStates(cut, hidden_size=8, num_taps=0))


def test_a_damaged_file_counts_as_not_recorded(tmp_path: Path) -> None:
    answers = stored(tmp_path, {"a": [torch.zeros(9, 8)]})
    states_file(answers.shards[0]).write_bytes(b"cut")
    assert not len(RecordedStates(answers, hidden_size=8, num_taps=0))
