"""Observing: every row reaches the drafter once and in order, now or in one larger bite."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from fakes import ScriptedDrafter
from headlong.arrays import FloatArray
from headlong.cache.kv_cache import KVCache
from headlong.config import SamplingParams
from headlong.decode.observing import MAX_UNOBSERVED, catch_up, settle
from headlong.decode.sampling import Sampler
from headlong.decode.sequence import MAX_FOREIGN, DecodingSequence, Span
from headlong.drafters.drafter import Settled


@dataclass
class Listener(ScriptedDrafter):
    """A drafter that keeps what it hears."""

    heard: list[Settled] = field(default_factory=list)

    def observe(self, settled: Sequence[Settled]) -> None:
        """Keep what was said."""
        self.heard += settled


@pytest.fixture
def listener() -> Listener:
    """A fresh listener."""
    return Listener([], 96)


def make_sequence() -> DecodingSequence:
    """Return a sequence that has a drafter's memory and a prompt none of which has run."""
    sampler = Sampler(SamplingParams(), [1], 96)
    return DecodingSequence(list(range(2000)), KVCache(()), sampler, "memory")


def commit(
    sequence: DecodingSequence, num_rows: int, num_others: int = 0, num_columns: int = 1
) -> Span:
    """Run the next rows of a sequence in a pass with others; their numbers tell their places."""
    first = sequence.cache.length
    sequence.cache.append(num_rows)
    sequence.cache.commit(num_rows)
    places: FloatArray = np.arange(first - num_others, first + num_rows, dtype=np.float32)
    features = np.repeat(places[:, None], num_columns, axis=1)
    return Span(features, num_others, num_others + num_rows)


def test_rows_of_a_drafting_sequence_are_observed_at_once(listener: Listener) -> None:
    sequence = make_sequence()
    settle(listener, [(sequence, commit(sequence, 3))])
    assert [one.token_ids.tolist() for one in listener.heard] == [[0, 1, 2]]
    assert sequence.unobserved.num_rows == 0


def test_rows_of_a_resting_sequence_wait_and_come_together(listener: Listener) -> None:
    sequence = make_sequence()
    sequence.is_resting = True
    for _ in range(5):
        settle(listener, [(sequence, commit(sequence, 1, num_others=3))])
    assert listener.heard == []
    catch_up(listener, [sequence])
    (one,) = listener.heard
    assert one.state == "memory"
    assert one.token_ids.tolist() == [0, 1, 2, 3, 4]
    assert one.next_ids.tolist() == [1, 2, 3, 4, 5]
    assert one.features[:, 0].tolist() == [0, 1, 2, 3, 4]
    catch_up(listener, [sequence])
    assert len(listener.heard) == 1, "nothing is observed twice"


def test_waiting_rows_are_bounded(listener: Listener) -> None:
    sequence = make_sequence()
    sequence.is_resting = True
    for _ in range(0, 3 * MAX_UNOBSERVED, 2):
        settle(listener, [(sequence, commit(sequence, 2))])
        assert sequence.unobserved.num_rows <= MAX_UNOBSERVED
        assert sequence.unobserved.num_rows == sum(
            span.stop - span.first for span in sequence.unobserved.spans
        )
    ids = np.concatenate([one.token_ids for one in listener.heard]).tolist()
    assert ids == list(range(len(ids)))
    assert len(listener.heard) <= 3


def test_waiting_rows_hold_a_few_whole_passes_at_most(listener: Listener) -> None:
    """Guards keeping a pass over a batch alive for each of its rows."""
    sequence = make_sequence()
    sequence.is_resting = True
    num_rows = MAX_FOREIGN // 40 + 3
    for _ in range(num_rows):
        settle(listener, [(sequence, commit(sequence, 1, num_others=40))])
        assert num_foreign(sequence) == sequence.unobserved.num_foreign <= MAX_FOREIGN
    assert num_foreign(sequence) == 2 * 40
    sequence.unobserved.leave_passes()
    assert num_foreign(sequence) == 0
    catch_up(listener, [sequence])
    assert listener.heard[0].token_ids.tolist() == list(range(num_rows))


def num_foreign(sequence: DecodingSequence) -> int:
    """Return how many rows of others are alive because of rows that wait."""
    spans = [span for span in sequence.unobserved.spans if not span.is_packed]
    return sum(len(span.features) - len(span.read()) for span in spans)


def test_rows_that_had_a_pass_for_themselves_are_not_copied(listener: Listener) -> None:
    """Guards copying long prompts, which come in many chunks."""
    sequence = make_sequence()
    sequence.is_resting = True
    for _ in range(40):
        settle(listener, [(sequence, commit(sequence, 8))])
    prompt = list(sequence.unobserved.spans)
    for _ in range(5):
        settle(listener, [(sequence, commit(sequence, 1, num_others=7))])
    sequence.unobserved.leave_passes()
    assert all(
        mine is before for mine, before in zip(sequence.unobserved.spans[:40], prompt, strict=True)
    )
    assert [len(span.read()) for span in sequence.unobserved.spans[40:]] == [5]


def test_packed_rows_take_less_and_are_heard_in_order(listener: Listener) -> None:
    sequence = make_sequence()
    sequence.is_resting = True
    for num_rows, num_others in ((8, 0), (1, 7), (2, 3)):
        settle(listener, [(sequence, commit(sequence, num_rows, num_others, num_columns=96))])
    assert sequence.unobserved.bytes_for(2) == 13 * 96 * 4
    sequence.unobserved.pack()
    assert sequence.unobserved.bytes_for(2) == 11 * 3 * 36 + 2 * 96 * 4
    settle(listener, [(sequence, commit(sequence, 1, num_others=7, num_columns=96))])
    sequence.unobserved.pack()
    assert [len(span.features) for span in sequence.unobserved.spans] == [11, 1], "once is enough"
    assert sequence.unobserved.bytes_for(0) == 12 * 3 * 36
    catch_up(listener, [sequence])
    np.testing.assert_allclose(listener.heard[0].features[:, 50], np.arange(12), rtol=1e-6)
    assert sequence.unobserved.bytes_for(9) == 0


def test_packed_rows_are_shared_as_they_are(listener: Listener) -> None:
    sequence = make_sequence()
    sequence.unobserved.add(commit(sequence, 9, num_others=2))
    sequence.unobserved.pack()
    shared = sequence.unobserved.first_rows(4)
    assert shared.spans[0].features is sequence.unobserved.spans[0].features
    assert (shared.num_rows, shared.num_foreign, shared.bytes_for(0)) == (4, 0, 4 * 36)
    np.testing.assert_allclose(shared.spans[0].read()[:, 0], np.arange(4), rtol=1e-6)


def test_leading_rows_can_wait_for_somebody_else(listener: Listener) -> None:
    sequence = make_sequence()
    for num_rows in (3, 1, 4):
        sequence.unobserved.add(commit(sequence, num_rows, num_others=2))
    shared = sequence.unobserved.first_rows(5)
    assert (shared.num_rows, sequence.unobserved.num_rows) == (5, 8)
    rows = np.concatenate([span.read() for span in shared.spans])
    np.testing.assert_allclose(rows[:, 0], [0, 1, 2, 3, 4], rtol=1e-6)
    shared.add(commit(sequence, 1))
    assert sequence.unobserved.num_rows == 8
    assert sequence.unobserved.first_rows(0).num_rows == 0


def test_observed_rows_are_counted() -> None:
    sequence = make_sequence()
    commit(sequence, 4)
    for num_rows in (2, 1):
        sequence.unobserved.add(commit(sequence, num_rows))
    assert sequence.num_observed == 4
