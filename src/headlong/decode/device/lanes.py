"""Lanes: what the host knows of a sequence's place in a round, before and after the round.

In:  sequences with plans, and the round they are still in, if any. Out: the numbers a round reads;
     then what it did, for each sequence. Knows nothing of tensors and passes.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headlong.arrays import FloatArray, IntArray
from headlong.cache.page_pool import PAGE_ROWS, PagedState
from headlong.config import MAX_DRAFT_TOKENS
from headlong.decode.accept import accept
from headlong.decode.device.round import Column, RoundShape
from headlong.decode.device.tensors import RING
from headlong.decode.outcome import Verdict
from headlong.decode.sampling import Pick, pick_rule
from headlong.decode.sequence import DecodingSequence
from headlong.drafters.draft_plan import DraftPlan
from headlong.drafters.drafter import NGRAM, Draft
from headlong.errors import CheckpointError
from headlong.ops.cuda.pick import Draw
from headlong.ops.noise import noise_stream

HEAD = "head"
"""The source of the head's tokens."""

_DEPTHS = (0, 1, 2, 3, 4, 5, 6, 8, 12, MAX_DRAFT_TOKENS)
_BEHIND = (0, 1, 5, 9, 17, 33, RING)
_SHOWN = (0, 1, 4, 16)
"""Sizes that shapes have: few, so that few graphs are captured."""

_MOST_WAITING = RING // 2
"""Rows that may wait: in a ring twice as long, rounds that are made again find all of them."""

_FIRST_WIDTH, _WIDER = 16, 4


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """A sequence's place in a round."""

    sequence: DecodingSequence
    state: PagedState
    slot: int
    plan: DraftPlan
    given: Draft
    """Draft tokens that the host found."""
    depth: int
    """Draft tokens in all."""
    drafts: bool
    """Whether the head drafts what is not given."""
    can_draft: bool
    """Whether its rows are kept for the head."""
    observes: bool
    """Whether the head observes the rows that wait."""
    most_rows: int
    """Rows that have run before this round, at most."""
    most_waiting: int
    """Of these, rows that wait for the head."""
    is_ahead: bool
    """Whether it begins before the host knows how the round before ends."""

    @property
    def must_observe(self) -> bool:
        """Whether so many rows wait that there may soon be no room for more."""
        return self.can_draft and self.most_waiting > _MOST_WAITING

    @property
    def host_picks(self) -> bool:
        """Whether more than logits, position and noise decides, or logits are asked for."""
        return host_picks(self.sequence)


def host_picks(sequence: DecodingSequence) -> bool:
    """Tell whether tokens of a sequence are picked on the host, from first to last.

    One place for all its tokens: the two may differ in the last bit of a logarithm.
    """
    sampling = sequence.request.sampling
    has_history = sequence.request.grammar is not None or bool(sampling.logit_bias)
    penalties = (sampling.presence_penalty, sampling.frequency_penalty, sampling.min_tokens)
    has_history |= any(penalties) or sampling.repetition_penalty != 1
    return has_history or sampling.logprobs is not None


def make_lane(
    sequence: DecodingSequence,
    slot: int,
    given: Draft,
    before: Lane | None,
    *,
    has_head: bool,
) -> Lane:
    """Return the lane of a sequence, or the one behind the lane `before`, which still runs."""
    state, plan = sequence.cache, sequence.plan
    assert isinstance(state, PagedState)
    can_draft = has_head and sequence.draft_state is not None and state.num_observed is not None
    is_short = len(given.token_ids) < plan.num_tokens and NGRAM not in given.sources
    drafts = can_draft and plan.runs_drafter and is_short
    depth = plan.num_tokens if drafts else len(given.token_ids)
    if before is None:
        most_rows, waiting = state.length, state.length - (state.num_observed or 0)
    else:
        most_rows = before.most_rows + before.depth + 1
        waiting = before.depth + 1 + (0 if before.observes else before.most_waiting)
    return Lane(
        sequence,
        state,
        slot,
        plan,
        given,
        depth,
        drafts,
        can_draft,
        observes=drafts,
        most_rows=most_rows,
        most_waiting=waiting,
        is_ahead=before is not None,
    )


def shape_of(lanes: Sequence[Lane], table_pages: int) -> RoundShape:
    """Return the shape of a round of these lanes, those that the host picks for first."""
    num_lanes = 1 << (len(lanes) - 1).bit_length()
    depth = _at_least(_DEPTHS, max(lane.depth for lane in lanes))
    waiting = max((lane.most_waiting for lane in lanes if lane.observes), default=0)
    return RoundShape(
        lanes=num_lanes,
        depth=depth,
        behind=_at_least(_BEHIND, waiting),
        drafts=any(lane.drafts for lane in lanes),
        keeps=any(lane.state.num_observed is not None for lane in lanes),
        width=table_width(max(lane.most_rows for lane in lanes) + depth + 1, table_pages),
        draw=max(_draw_of(lane.sequence) for lane in lanes),
        shown=_num_shown(lanes, num_lanes),
    )


def table_width(num_rows: int, table_pages: int) -> int:
    """Return how many pages a pass looks at: a few sizes, each some times the one before."""
    width = _FIRST_WIDTH
    while width * PAGE_ROWS < num_rows:
        width *= _WIDER
    return min(width, table_pages)


def fill_numbers(numbers: IntArray, lanes: Sequence[Lane]) -> None:
    """Write what a round reads of its lanes into their lines."""
    floats = numbers.view(np.float64)
    for line, float_line, lane in zip(numbers, floats, lanes, strict=False):
        rule = pick_rule(lane.sequence.request.sampling)
        line[Column.SLOT] = lane.slot
        line[Column.LENGTH] = -1 if lane.is_ahead else lane.state.length
        line[Column.OBSERVED] = -1 if lane.is_ahead else lane.state.num_observed or 0
        line[Column.OBSERVES] = lane.observes
        line[Column.NUM_DRAFTED] = lane.depth
        line[Column.NUM_GIVEN] = len(lane.given.token_ids)
        line[Column.STREAM : Column.STREAM + 1] = np.array(
            [noise_stream(rule.seed)], np.uint64
        ).view(np.int64)
        line[Column.TOP_K] = rule.top_k
        float_line[Column.TEMPERATURE] = rule.temperature
        float_line[Column.TOP_P] = rule.top_p
        float_line[Column.MIN_P] = rule.min_p
        own = slice(Column.GIVEN, Column.GIVEN + len(lane.given.token_ids))
        line[own] = lane.given.token_ids


def read_draft(lane: Lane, line: IntArray, depth: int) -> Draft:
    """Return what a lane drafted in a round of this depth."""
    num_given = len(lane.given.token_ids)
    first = depth + 3
    probs = line[first + depth :].view(np.float64)[: lane.depth]
    return Draft(
        tuple(line[first : first + lane.depth].tolist()),
        (*lane.given.probs, *probs[num_given:].tolist()),
        (*lane.given.sources, *[HEAD] * (lane.depth - num_given)),
        num_steps=lane.depth - num_given,
    )


def judge(lane: Lane, draft: Draft, line: IntArray, logits: FloatArray | None) -> Verdict:
    """Return the picks of a lane: the device's, or the host's from its logits.

    Every pick joins the sampler's history.
    """
    sampler = lane.sequence.sampler
    if lane.host_picks:
        assert logits is not None
        return accept(draft.token_ids, logits[: lane.depth + 1], sampler)
    num_accepted, is_sound = line[:2].tolist()
    if not is_sound:
        raise CheckpointError(
            f"The model produced logits that are not finite behind position {sampler.num_tokens}.",
            "The file may be damaged or badly quantised: pull it again or use another one.",
        )
    picks = [Pick(token_id, None) for token_id in line[2 : 3 + num_accepted].tolist()]
    for pick in picks:
        sampler.push(pick.token_id)
    return Verdict(tuple(picks), num_accepted)


def settle(lane: Lane, verdict: Verdict) -> None:
    """Append the picks to their sequence and commit its rows."""
    sequence, state, num_rows = lane.sequence, lane.state, len(verdict.picks)
    if lane.observes:
        state.num_observed = state.length
    sequence.token_ids += [pick.token_id for pick in verdict.picks]
    state.append(num_rows)
    state.commit(num_rows)


def _draw_of(sequence: DecodingSequence) -> Draw:
    rule = pick_rule(sequence.request.sampling)
    if rule.temperature == 0:
        return Draw.GREEDY
    filters = rule.top_k > 0 or rule.top_p < 1 or rule.min_p > 0
    return Draw.FILTERS if filters else Draw.NOISE


def _num_shown(lanes: Sequence[Lane], num_lanes: int) -> int:
    wanted = sum(lane.host_picks for lane in lanes)
    return min(num_lanes, next((size for size in _SHOWN if size >= wanted), num_lanes))


def _at_least(sizes: Sequence[int], number: int) -> int:
    return sizes[bisect_left(sizes, number)]
