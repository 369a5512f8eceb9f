"""The round: draft, verify, accept, commit. Emits 1 to K+1 tokens per sequence from one pass.

In:  sequences with a prompt behind them, and how many draft tokens each is worth now.
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
from headlong.drafters.drafter import (
    NGRAM,
    NO_BAR,
    NO_DRAFT,
    Draft,
    DraftAsk,
    Drafter,
    forced_draft,
)
from headlong.errors import HeadError, HeadlongError
from headlong.models.transformer import Backbone
from headlong.ops.op_set import Array

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
    num_draft_tokens: Sequence[int],
    backbone: Backbone,
    drafter: Drafter | None,
    max_rows: int | None = None,
) -> list[RoundResult]:
    """Move every sequence of the batch on with a single backbone pass.

    Forced spans share what the other rows leave of `max_rows`, since everybody waits for the pass;
    None sets no bound.
    """
    began_s = time.perf_counter()
    drafts = _draft(batch, num_draft_tokens, backbone, drafter, max_rows)
    drafted_s = time.perf_counter()
    features, verified = _verify(batch, drafts, backbone, drafter)
    verdicts = [
        _judge(sequence, draft, seen)
        for sequence, draft, seen in zip(batch, drafts, verified, strict=True)
    ]
    verified_s = time.perf_counter()
    kept = _keep(batch, verified, verdicts)
    if drafter is not None:
        settle(drafter, features, [one for one in kept if one[0].draft_state is not None])
    for sequence, first, stop in kept:  # last: a pass that fails anywhere before is rolled back
        sequence.cache.commit(stop - first)
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
    num_draft_tokens: Sequence[int],
    backbone: Backbone,
    drafter: Drafter | None,
    max_rows: int | None,
) -> list[Draft]:
    """Draft what grammars force, and ask the drafter where it is to go on behind that."""
    drafts = [NO_DRAFT] * len(batch)
    if any(one.sampler.constraint is not None for one in batch):
        drafts = _draft_forced(batch, num_draft_tokens, backbone.config.context_length, max_rows)
    if drafter is None:
        return drafts
    asking: list[int] = []
    for i, (sequence, k) in enumerate(zip(batch, num_draft_tokens, strict=True)):
        if k <= len(drafts[i].token_ids) or sequence.draft_state is None:
            continue
        if not sequence.only_copies:
            asking.append(i)
        elif not drafts[i].token_ids:
            drafts[i] = _copy(sequence, drafter)
    if not asking:
        return drafts
    catch_up(drafter, [batch[i] for i in asking])
    asks = [
        DraftAsk(
            batch[i].draft_state,
            batch[i].token_ids,
            num_draft_tokens[i],
            batch[i].sampler,
            drafts[i].token_ids,
            batch[i].bars,
        )
        for i in asking
    ]
    for i, draft in zip(asking, _ask(drafter, asks), strict=True):
        if isinstance(draft, HeadError):  # a broken drafter costs speed, never the answer
            batch[i].draft_state, batch[i].off_reason = None, str(draft)
        else:
            drafts[i] = _go_on(drafts[i], draft, batch[i])
    return drafts


def _copy(sequence: DecodingSequence, drafter: Drafter) -> Draft:
    """Draft what needs no model, for a sequence that otherwise rests."""
    bar = sequence.bars.get(NGRAM, NO_BAR)
    draft = drafter.copy(sequence.draft_state, sequence.token_ids, bar)
    return _go_on(NO_DRAFT, draft, sequence) if draft.token_ids else NO_DRAFT


def _ask(drafter: Drafter, asks: Sequence[DraftAsk]) -> list[Draft | HeadError]:
    """Draft for all at once; where that fails, for each alone, so that only one is without."""
    try:
        return list(drafter.draft(asks))
    except HeadError as error:
        if len(asks) == 1:
            return [error]
    return [found for ask in asks for found in _ask(drafter, [ask])]


def _draft_forced(
    batch: Sequence[DecodingSequence],
    num_draft_tokens: Sequence[int],
    context: int,
    max_rows: int | None,
) -> list[Draft]:
    """Draft what grammars leave no choice about."""
    wanted = zip(batch, num_draft_tokens, strict=True)
    forced = [_forced(sequence, k, context) for sequence, k in wanted]
    if max_rows is not None:
        forced = _share_rows(forced, num_draft_tokens, max_rows)
    return [forced_draft(token_ids) for token_ids in forced]


def _forced(sequence: DecodingSequence, num_draft_tokens: int, context: int) -> Sequence[int]:
    """Return the tokens a grammar forces now; more than K of them, as they are nearly certain."""
    constraint = sequence.sampler.constraint
    is_off = num_draft_tokens == 0 and sequence.draft_state is None
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
) -> tuple[Array, list[Verified]]:
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


def _keep(
    batch: Sequence[DecodingSequence],
    verified: Sequence[Verified],
    verdicts: Sequence[Verdict | HeadlongError],
) -> list[Kept]:
    """Add the picks to the sequences; return the rows that stand."""
    kept: list[Kept] = []
    for sequence, seen, verdict in zip(batch, verified, verdicts, strict=True):
        if isinstance(verdict, HeadlongError):
            sequence.cache.rollback()
            continue
        sequence.token_ids += [pick.token_id for pick in verdict.picks]
        kept.append((sequence, seen.first, seen.first + len(verdict.picks)))
    return kept
