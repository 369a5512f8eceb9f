"""Rounds under way: begun on the device, and read once their numbers have come back.

In:  sequences that decode, each with a plan and a slot. Out: what a round did for each of them.
Where the host has no part in it, the next round begins before this one is read. It follows the
plans of this call, and serves the sequences that still run by then; others begin a round of their
own beside it. Only reading changes a sequence: what is never read has not happened.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from headlong.arrays import IntArray
from headlong.decode.device.lanes import (
    Lane,
    fill_numbers,
    host_picks,
    judge,
    make_lane,
    read_draft,
    settle,
    shape_of,
)
from headlong.decode.device.round import DeviceRound, RoundResults, RoundShape
from headlong.decode.device.tensors import DeviceTensors
from headlong.decode.drafting import draft_all
from headlong.decode.recovery import as_engine_error, disable_drafter
from headlong.decode.round import RoundResult
from headlong.decode.sequence import DecodingSequence
from headlong.drafters.drafter import NGRAM, NO_DRAFT, Draft, PendingDraft
from headlong.drafters.ngram import NgramDrafter
from headlong.errors import HeadError
from headlong.ops.cuda.graph_replay import Fetched, Replay

LOOKUP_LANES = 8
"""Beside at most so many streams n-grams are looked up: a round with a match in it cannot begin
ahead, and among many streams one of them nearly always has a match."""


class Flight(NamedTuple):
    """A round that was begun and is not read yet."""

    lanes: list[Lane]
    depth: int
    numbers: Fetched
    logits: Fetched | None
    began_s: float


@dataclass(slots=True)
class DeviceRounds:
    """The rounds of one runner."""

    tensors: DeviceTensors
    device_round: DeviceRound
    ngram: NgramDrafter | None
    context_length: int
    begins_ahead: bool
    slots: Mapping[DecodingSequence, int]
    """Those of the runner."""
    replay: Replay[RoundShape, RoundResults] = field(init=False)
    _ahead: Flight | None = None
    _copies: bool = False
    """Whether the newest tokens have a match, so that the host has a say in the next round."""
    _last_read_s: float = 0.0
    _num_prepared: int = 0
    """Shapes that had been prepared when the last round was read."""

    def __post_init__(self) -> None:
        idle = self.device_round.idle_numbers
        device = self.tensors.ops.device
        self.replay = Replay(
            self.device_round, lambda shape: idle(shape.lanes), device, self._stop_overlapping
        )

    def begin(self, batch: Sequence[DecodingSequence], max_rows: int) -> list[Flight]:
        """Begin a round for those that have none under way, and the next one of all."""
        ahead, self._ahead = self._ahead, None
        flights = [] if ahead is None else [ahead]
        lanes = {} if ahead is None else _of(ahead, batch)
        missing = [sequence for sequence in batch if sequence not in lanes]
        if missing:
            begun = self._begin(self._lanes_now(missing, max_rows))
            flights.append(begun)
            lanes |= _of(begun, missing)
        if self._may_begin_ahead(batch):
            behind = [self._lane(one, before=lanes[one]) for one in batch if not self._ends(one)]
            self._ahead = self._begin(behind) if behind else None
        return flights

    def read(
        self, flights: Sequence[Flight], batch: Sequence[DecodingSequence]
    ) -> dict[DecodingSequence, RoundResult]:
        """Wait for rounds, and move the sequences on that are in the batch."""
        arrived = [(flight, flight.numbers.read()) for flight in flights]
        found: dict[DecodingSequence, RoundResult] = {}
        was_ready = self._num_prepared == self.replay.num_prepared
        self._num_prepared = self.replay.num_prepared
        for flight, numbers in arrived:
            now_s = time.perf_counter()
            seconds = now_s - max(self._last_read_s, flight.began_s)
            self._last_read_s = now_s
            lanes = _of(flight, batch)
            for i, lane in enumerate(flight.lanes):
                if lanes.get(lane.sequence) is lane:
                    result = self._settle(flight, i, numbers[i])
                    found[lane.sequence] = result._replace(
                        verify_s=seconds, is_representative=was_ready
                    )
        self._copies = self.begins_ahead and self._has_match(batch)
        return found

    def forget(self) -> None:
        """Forget what was begun: it is made again from what the host knows."""
        self._ahead = None

    def rehearsed(self, sequence: DecodingSequence, given: Draft) -> Callable[[], RoundResults]:
        """Return what makes a round as often as it is called, to be timed; it is never read.

        Of a sequence that is in no round now. Without a draft of the host's, the head drafts what
        the sequence's plan asks for.
        """
        prepared = self._prepared([self._lane(sequence, given)])
        return lambda: self.replay(*prepared)

    def _stop_overlapping(self) -> bool:
        """Launch kernels one after the other from now on; tell whether they overlapped."""
        paged = self.tensors.ops.paged
        overlapped, paged.overlaps = paged.overlaps, False
        return overlapped

    def _may_begin_ahead(self, batch: Sequence[DecodingSequence]) -> bool:
        is_free = self.begins_ahead and not self._copies
        return is_free and not any(host_picks(sequence) for sequence in batch)

    def _lanes_now(self, batch: Sequence[DecodingSequence], max_rows: int) -> list[Lane]:
        """Return lanes with what the host can draft for them."""
        ngram = self.ngram if len(batch) <= LOOKUP_LANES else None
        given = draft_all(batch, ngram, self.context_length, max_rows)
        return [self._lane(*pair) for pair in zip(batch, given, strict=True)]

    def _lane(
        self,
        sequence: DecodingSequence,
        given: Draft | PendingDraft = NO_DRAFT,
        before: Lane | None = None,
    ) -> Lane:
        assert isinstance(given, Draft), "the host's drafts are read at once"
        has_head = self.device_round.has_head
        return make_lane(sequence, self.slots[sequence], given, before, has_head=has_head)

    def _begin(self, lanes: list[Lane]) -> Flight:
        if any(lane.must_observe for lane in lanes):  # all at once, so that they rarely must
            lanes = [replace(lane, observes=lane.can_draft) for lane in lanes]
        shape, numbers = self._prepared(lanes)
        began_s = time.perf_counter()
        results = self.replay(shape, numbers)
        logits = None if results.logits is None else Fetched(results.logits)
        return Flight(lanes, shape.depth, Fetched(results.numbers), logits, began_s)

    def _prepared(self, lanes: list[Lane]) -> tuple[RoundShape, IntArray]:
        lanes.sort(key=lambda lane: not lane.host_picks)  # only the logits of those come back
        shape = shape_of(lanes, self.tensors.table.shape[1])
        numbers = self.device_round.idle_numbers(shape.lanes)
        fill_numbers(numbers, lanes)
        self.replay.prepare(shape)
        return shape, numbers

    def _settle(self, flight: Flight, place: int, line: IntArray) -> RoundResult:
        """Move one sequence on; a failure is its own."""
        lane = flight.lanes[place]
        draft = read_draft(lane, line, flight.depth)
        logits = None
        if flight.logits is not None and lane.host_picks:
            logits = flight.logits.read()[place]
        try:
            verdict = judge(lane, draft, line, logits)
        except Exception as error:
            return RoundResult(draft, error=as_engine_error(error))
        settle(lane, verdict)
        sequence = lane.sequence
        if lane.host_picks:  # the device has picked by itself, maybe otherwise
            first = lane.state.length - len(verdict.picks) + 1
            self.tensors.put_tokens(lane.slot, first, sequence.token_ids[first:])
        if not all(math.isfinite(prob) for prob in draft.probs):
            disable_drafter(sequence, HeadError("Its logits are not finite.", _ANOTHER_HEAD))
        return RoundResult(draft, verdict, plan=lane.plan)

    def _ends(self, sequence: DecodingSequence) -> bool:
        """Tell whether a sequence ends with the round that is under way."""
        return sequence.max_tokens_left(self.context_length) <= 1

    def _has_match(self, batch: Sequence[DecodingSequence]) -> bool:
        """Tell whether the host would draft for one of these sequences now."""
        if self.ngram is None or len(batch) > LOOKUP_LANES:
            return False
        drafts = draft_all(batch, self.ngram, self.context_length)
        return any(isinstance(one, Draft) and NGRAM in one.sources for one in drafts)


def _of(flight: Flight, batch: Sequence[DecodingSequence]) -> dict[DecodingSequence, Lane]:
    """Return the lanes of sequences that go on from where the flight took them."""
    return {
        lane.sequence: lane
        for lane in flight.lanes
        if lane.sequence in batch and lane.sequence.cache is lane.state
    }


_ANOTHER_HEAD = "Use another head, or go without one (drafter='none')."
