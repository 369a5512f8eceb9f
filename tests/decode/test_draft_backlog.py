"""Observing: every row reaches the drafter once and in order, now or in one larger bite."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from fakes import ScriptedDrafter, make_sequence, run_rows
from headlong.arrays import FloatArray
from headlong.cache.sequence_state import SequenceState
from headlong.decode.draft_backlog import MAX_BACKLOG, catch_up, observe_kept
from headlong.decode.sequence import DecodingSequence
from headlong.drafters.draft_plan import NO_PLAN, DraftPlan
from headlong.drafters.drafter import ObservedRows


@dataclass
class Listener(ScriptedDrafter):
    """A drafter that keeps what it hears."""

    heard: list[ObservedRows] = field(default_factory=list)

    def observe(self, settled: Sequence[ObservedRows]) -> None:
        """Keep what was said."""
        self.heard += settled


@pytest.fixture
def listener() -> Listener:
    """A fresh listener."""
    return Listener([], 96)


def listened_to() -> DecodingSequence:
    """Return a sequence that has a drafter's memory and a prompt none of which has run."""
    return make_sequence(range(2000), SequenceState(()), "memory")


def test_rows_of_a_drafting_sequence_are_observed_at_once(listener: Listener) -> None:
    sequence = listened_to()
    run_rows(listener, sequence, 3)
    assert [one.token_ids.tolist() for one in listener.heard] == [[0, 1, 2]]
    assert sequence.backlog.num_rows == 0


def test_rows_of_a_resting_sequence_wait_and_come_together(listener: Listener) -> None:
    sequence = listened_to()
    sequence.plan = DraftPlan(is_idle=True)
    for num_rows, num_others in ((8, 0), (1, 7), (2, 3)):
        run_rows(listener, sequence, num_rows, num_others)
    assert listener.heard == []
    catch_up(listener, [sequence])
    (one,) = listener.heard
    assert one.state == "memory"
    assert one.token_ids.tolist() == list(range(11))
    assert one.next_ids.tolist() == list(range(1, 12))
    np.testing.assert_allclose(np.concatenate(one.features)[:, 0], np.arange(11), rtol=1e-6)
    catch_up(listener, [sequence])
    assert len(listener.heard) == 1, "nothing is observed twice"


def test_rows_that_waited_come_before_the_newest(listener: Listener) -> None:
    sequence = listened_to()
    sequence.plan = DraftPlan(is_idle=True)
    run_rows(listener, sequence, 4, num_others=2)
    sequence.plan = NO_PLAN
    run_rows(listener, sequence, 2, num_others=1)
    (one,) = listener.heard
    np.testing.assert_allclose(np.concatenate(one.features)[:, 0], np.arange(6), rtol=1e-6)
    assert sequence.backlog.num_rows == 0


def test_sequences_of_one_pass_rest_and_draft_side_by_side(listener: Listener) -> None:
    resting, drafting, other = [listened_to() for _ in range(3)]
    resting.plan = other.plan = DraftPlan(is_idle=True)
    features: FloatArray = np.arange(6, dtype=np.float32)[:, None]
    for sequence, num_rows in ((resting, 2), (drafting, 1), (other, 2)):
        sequence.cache.append(num_rows)
        sequence.cache.commit(num_rows)
    observe_kept(listener, features, [(resting, 0, 2), (drafting, 2, 3), (other, 4, 6)])
    assert [np.concatenate(one.features).tolist() for one in listener.heard] == [[[2.0]]]
    np.testing.assert_allclose(resting.backlog.rows.read(), features[:2], rtol=1e-6)
    np.testing.assert_allclose(other.backlog.rows.read(), features[4:], rtol=1e-6)


def test_waiting_rows_are_bounded(listener: Listener) -> None:
    sequence = listened_to()
    sequence.plan = DraftPlan(is_idle=True)
    for _ in range(0, 3 * MAX_BACKLOG, 2):
        run_rows(listener, sequence, 2)
        assert sequence.backlog.num_rows <= MAX_BACKLOG
    ids = np.concatenate([one.token_ids for one in listener.heard]).tolist()
    assert ids == list(range(len(ids)))
    assert len(listener.heard) <= 3


def test_leading_rows_can_wait_for_somebody_else(listener: Listener) -> None:
    sequence = listened_to()
    sequence.plan = DraftPlan(is_idle=True)
    for num_rows in (3, 1, 4):
        run_rows(listener, sequence, num_rows, num_others=2)
    shared = sequence.backlog.first_rows(5)
    assert (shared.num_rows, sequence.backlog.num_rows) == (5, 8)
    np.testing.assert_allclose(shared.rows.read()[:, 0], np.arange(5), rtol=1e-6)
    shared.clear()
    assert sequence.backlog.num_rows == 8


def test_observed_rows_are_counted(listener: Listener) -> None:
    sequence = listened_to()
    run_rows(listener, sequence, 4)
    sequence.plan = DraftPlan(is_idle=True)
    for num_rows in (2, 1):
        run_rows(listener, sequence, num_rows)
    assert sequence.num_observed == 4
    assert sequence.backlog.bytes_for(0) > 0
    catch_up(listener, [sequence])
    assert sequence.backlog.bytes_for(9) == 0
