"""The round: draft, verify, accept, commit. Emits 1 to K+1 tokens per sequence from one pass.

In:  sequences with a prompt behind them, and a draft plan for each.
Out: what each of them gained. Whatever the drafter says, the tokens are the backbone's own picks.
Where a grammar leaves no choice, the whole forced span is drafted for free, and a drafter's own
guesses are cut to what the grammar allows. One sequence's failure leaves the others alone.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from headlong.arrays import FloatArray
from headlong.decode.accept import accept
from headlong.decode.observing import Kept, catch_up, settle
from headlong.decode.outcome import Verdict
from headlong.decode.sequence import DecodingSequence
from headlong.drafters.draft_plan import DraftPlan
from headlong.drafters.drafter import (
    NGRAM,
    NO_DRAFT,
    Draft,
    Drafter,
    DraftRequest,
    forced_draft,
)
from headlong.errors import HeadError, HeadlongError
from headlong.models.transformer import Backbone

MAX_FORCED = 16
"""Draft tokens of one forced span: nearly certain to stand, but every row still costs a little."""


class Verified(NamedTuple):
    """What the backbone says of one sequence's last token and draft."""

    first: int
    """Where its rows begin in the pass."""
    logits: FloatArray  # (K+1, V)


class RoundResult(NamedTuple):
    """What one round did for one sequence."""

    draft: Draft
    verdict: Verdict | None
    """None when the sequence failed and cannot go on; `error` then says why."""
    draft_s: float
    verify_s: float
    error: HeadlongError | None = None


def run_round(
    batch: Sequence[DecodingSequence],
    plans: Sequence[DraftPlan],
    backbone: Backbone,
    drafter: Drafter | None,
    max_rows: int | None = None,
) -> list[RoundResult]:
    """Move every sequence of the batch on with a single backbone pass.

    Forced spans share what the other rows leave of `max_rows`, since everybody waits for the pass;
    None sets no bound.
    """
    began_s = time.perf_counter()
    for sequence, plan in zip(batch, plans, strict=True):
        sequence.plan = plan
    drafts = _draft(batch, backbone, drafter, max_rows)
    drafted_s = time.perf_counter()
    features, verified = _verify(batch, drafts, backbone, drafter)
    verdicts = [
        _judge(sequence, draft, seen)
        for sequence, draft, seen in zip(batch, drafts, verified, strict=True)
    ]
    verified_s = time.perf_counter()
    kept = _commit(batch, verified, verdicts)
    if drafter is not None and kept:
        settle(drafter, features, kept)
    draft_s = drafted_s - began_s + time.perf_counter() - verified_s
    verify_s = verified_s - drafted_s
    return [
        RoundResult(draft, None, draft_s, verify_s, verdict)
        if isinstance(verdict, HeadlongError)
        else RoundResult(draft, verdict, draft_s, verify_s)
        for draft, verdict in zip(drafts, verdicts, strict=True)
    ]


def _draft(
    batch: Sequence[DecodingSequence],
    backbone: Backbone,
    drafter: Drafter | None,
    max_rows: int | None,
) -> list[Draft]:
    """Draft what grammars force, and ask the drafter where it is to go on behind that."""
    drafts = [NO_DRAFT] * len(batch)
    if any(one.sampler.constraint is not None for one in batch):
        drafts = _draft_forced(batch, backbone.config.context_length, max_rows)
    if drafter is None:
        return drafts
    asking: list[int] = []
    for i, sequence in enumerate(batch):
        plan = sequence.plan
        if plan.num_tokens <= len(drafts[i].token_ids) or sequence.draft_state is None:
            continue
        if not plan.only_lookup:
            asking.append(i)
        elif not drafts[i].token_ids:
            drafts[i] = _look_up(sequence, drafter)
    if not asking:
        return drafts
    catch_up(drafter, [batch[i] for i in asking])
    requests = [
        DraftRequest(
            batch[i].draft_state,
            batch[i].token_ids,
            batch[i].plan,
            batch[i].sampler,
            drafts[i].token_ids,
        )
        for i in asking
    ]
    for i, draft in zip(asking, _request(drafter, requests), strict=True):
        if isinstance(draft, HeadError):  # a broken drafter costs speed, never the answer
            batch[i].draft_state, batch[i].off_reason = None, str(draft)
        else:
            drafts[i] = _go_on(drafts[i], draft, batch[i])
    return drafts


def _look_up(sequence: DecodingSequence, drafter: Drafter) -> Draft:
    """Draft what needs no model, for an idle sequence."""
    threshold = sequence.plan.threshold(NGRAM)
    draft = drafter.look_up(sequence.draft_state, sequence.token_ids, threshold)
    return _go_on(NO_DRAFT, draft, sequence) if draft.token_ids else NO_DRAFT


def _request(drafter: Drafter, requests: Sequence[DraftRequest]) -> list[Draft | HeadError]:
    """Draft for all at once; where that fails, for each alone, so that only one is without."""
    try:
        return list(drafter.draft(requests))
    except HeadError as error:
        if len(requests) == 1:
            return [error]
    return [found for one in requests for found in _request(drafter, [one])]


def _draft_forced(
    batch: Sequence[DecodingSequence], context: int, max_rows: int | None
) -> list[Draft]:
    """Draft what grammars leave no choice about."""
    forced = [_forced(sequence, context) for sequence in batch]
    if max_rows is not None:
        lengths = [sequence.plan.num_tokens for sequence in batch]
        forced = _share_rows(forced, lengths, max_rows)
    return [forced_draft(token_ids) for token_ids in forced]


def _forced(sequence: DecodingSequence, context: int) -> Sequence[int]:
    """Return the tokens a grammar forces now; more than K of them, as they are nearly certain."""
    constraint = sequence.sampler.constraint
    is_off = sequence.plan.num_tokens == 0 and sequence.draft_state is None
    if constraint is None or is_off:
        return ()
    room = context - len(sequence.token_ids) - 1
    return constraint.forced()[: max(0, min(room, MAX_FORCED))]


def _share_rows(
    forced: Sequence[Sequence[int]], num_draft_tokens: Sequence[int], max_rows: int
) -> list[Sequence[int]]:
    """Cut the longest spans, alike, until the rows of all fit; up to its K each is paid for."""
    beyond = [max(0, len(one) - k) for one, k in zip(forced, num_draft_tokens, strict=True)]
    left = max(0, max_rows - len(forced) - sum(num_draft_tokens))
    cut = list(forced)
    for place, i in enumerate(sorted(range(len(forced)), key=beyond.__getitem__)):
        share = min(beyond[i], left // (len(forced) - place))
        left -= share
        if beyond[i]:
            cut[i] = forced[i][: num_draft_tokens[i] + share]
    return cut


def _go_on(forced: Draft, draft: Draft, sequence: DecodingSequence) -> Draft:
    """Return what the grammar allows of a draft, which is to begin with the forced tokens."""
    constraint = sequence.sampler.constraint
    if constraint is None:
        return draft
    num_forced = len(forced.token_ids)
    if draft.token_ids[:num_forced] != forced.token_ids:
        return replace(forced, num_steps=draft.num_steps)
    return forced + draft.part(num_forced, constraint.num_allowed(draft.token_ids))


def _judge(sequence: DecodingSequence, draft: Draft, seen: Verified) -> Verdict | HeadlongError:
    """Accept what stands of one draft; a sequence that fails must not take the others along."""
    try:
        return accept(draft.token_ids, seen.logits, sequence.sampler)
    except HeadlongError as error:
        return error


def _verify(
    batch: Sequence[DecodingSequence],
    drafts: Sequence[Draft],
    backbone: Backbone,
    drafter: Drafter | None,
) -> tuple[FloatArray, list[Verified]]:
    """Run the backbone once over each sequence's newest token and its draft.

    Also returns what the drafter reads of the rows: (N, F).
    """
    token_ids = [
        np.array([sequence.token_ids[-1], *draft.token_ids])
        for sequence, draft in zip(batch, drafts, strict=True)
    ]
    listening = any(sequence.draft_state is not None for sequence in batch)
    listener = drafter if listening else None
    taps = () if listener is None else listener.tap_layers
    hidden = backbone.forward(token_ids, [sequence.cache for sequence in batch], taps)
    features = hidden.nothing if listener is None else listener.features(hidden)
    logits = backbone.logits(hidden.normed)  # (N, V)
    stops = accumulate(len(ids) for ids in token_ids)
    return features, [
        Verified(stop - len(ids), logits[stop - len(ids) : stop])
        for ids, stop in zip(token_ids, stops, strict=True)
    ]


def _commit(
    batch: Sequence[DecodingSequence],
    verified: Sequence[Verified],
    verdicts: Sequence[Verdict | HeadlongError],
) -> list[Kept]:
    """Keep the rows that stand and drop the others; return those a drafter is to hear of."""
    kept: list[Kept] = []
    for sequence, seen, verdict in zip(batch, verified, verdicts, strict=True):
        if isinstance(verdict, HeadlongError):
            sequence.cache.commit(0)
            continue
        num_rows = len(verdict.picks)
        sequence.cache.commit(num_rows)
        sequence.token_ids += [pick.token_id for pick in verdict.picks]
        if sequence.draft_state is not None:
            kept.append((sequence, seen.first, seen.first + num_rows))
    return kept
