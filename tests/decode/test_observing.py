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
from headlong.decode.sequence import DecodingSequence
from headlong.drafters.drafter import Settled
from headlong.models.hidden import HiddenRows


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
    """Return a sequence that has a drafter's memory and nothing else."""
    return DecodingSequence([1], KVCache(()), Sampler(SamplingParams(), [1], 96), "memory")


def settled(first: int, num_rows: int) -> Settled:
    """Return rows whose numbers tell where they belong."""
    ids = np.arange(first, first + num_rows)
    raw: FloatArray = ids.astype(np.float32)[:, None]
    return Settled("old memory", ids, HiddenRows(raw, raw + 0.5, raw + 0.25), ids + 1)


def test_rows_of_a_drafting_sequence_are_observed_at_once(listener: Listener) -> None:
    sequence = make_sequence()
    settle(listener, [(sequence, settled(0, 3))])
    assert [one.token_ids.tolist() for one in listener.heard] == [[0, 1, 2]]
    assert sequence.unobserved.parts == []


def test_rows_of_a_resting_sequence_wait_and_come_together(listener: Listener) -> None:
    sequence = make_sequence()
    sequence.is_resting = True
    for first in range(5):
        settle(listener, [(sequence, settled(first, 1))])
    assert listener.heard == []
    catch_up(listener, [sequence])
    (one,) = listener.heard
    assert one.state == "memory"
    assert one.token_ids.tolist() == [0, 1, 2, 3, 4]
    assert one.next_ids.tolist() == [1, 2, 3, 4, 5]
    assert one.hidden.normed[:, 0].tolist() == [0.5, 1.5, 2.5, 3.5, 4.5]
    assert one.hidden.taps is not None
    assert len(one.hidden.taps) == 5
    catch_up(listener, [sequence])
    assert len(listener.heard) == 1, "nothing is observed twice"


def test_waiting_rows_are_bounded(listener: Listener) -> None:
    sequence = make_sequence()
    sequence.is_resting = True
    for first in range(0, 3 * MAX_UNOBSERVED, 2):
        settle(listener, [(sequence, settled(first, 2))])
        assert sequence.unobserved.num_rows <= MAX_UNOBSERVED
        assert sequence.unobserved.num_rows == sum(
            len(one.next_ids) for one in sequence.unobserved.parts
        )
    ids = np.concatenate([one.token_ids for one in listener.heard]).tolist()
    assert ids == list(range(len(ids)))
    assert len(listener.heard) <= 3


def test_waiting_rows_do_not_hold_the_whole_pass(listener: Listener) -> None:
    """Guards keeping a pass over a batch alive for each of its rows."""
    sequence = make_sequence()
    sequence.is_resting = True
    rows = settled(0, 40)
    part = Settled(rows.state, rows.token_ids[:1], rows.hidden.rows(0, 1), rows.next_ids[:1])
    settle(listener, [(sequence, part)])
    waiting = sequence.unobserved.parts[0].hidden
    assert sequence.unobserved.num_bytes == 3 * 4
    assert waiting.raw.base is None
    assert waiting.taps is not None
    assert waiting.taps.base is None


def test_observed_rows_are_counted() -> None:
    sequence = make_sequence()
    cache = sequence.cache
    cache.append(7)
    cache.commit(7)
    for first, num_rows in ((4, 2), (6, 1)):
        sequence.unobserved.add(settled(first, num_rows))
    assert sequence.num_observed == 4
