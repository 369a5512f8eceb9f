"""Drafting: make the drafts of a round.

In:  sequences, each with a plan. Out: a draft each, possibly empty.
Tokens that a grammar forces are drafted without a drafter, and drafts are cut to what the grammar
allows. If a drafter fails for a sequence, the sequence continues without drafts.
"""

from collections.abc import Sequence
from dataclasses import replace

from headlong.decode.draft_backlog import catch_up
from headlong.decode.sequence import DecodingSequence
from headlong.drafters.drafter import (
    NGRAM,
    NO_DRAFT,
    Draft,
    Drafter,
    DraftRequest,
    LazyDrafter,
    PendingDraft,
    forced_draft,
)
from headlong.errors import HeadError
from headlong.ops.op_set import LazyOps, Ops

MAX_FORCED = 16
"""Most tokens of one forced span: they are nearly certain, but every row has a cost."""


def draft_all(
    batch: Sequence[DecodingSequence],
    drafter: Drafter | None,
    context_length: int,
    max_rows: int | None = None,
    *,
    lazily: bool = False,
) -> list[Draft | PendingDraft]:
    """Draft forced tokens, and let the drafter continue after them where the plan says so.

    Forced spans share the rows that the others leave of `max_rows`; None sets no limit. With
    `lazily`, a drafter that can do so leaves drafts on the device, to be verified before they are
    read.
    """
    drafts = [NO_DRAFT] * len(batch)
    if any(one.sampler.constraint is not None for one in batch):
        drafts = _draft_forced(batch, context_length, max_rows)
    if drafter is None:
        return [*drafts]
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
        return [*drafts]
    catch_up(drafter, [batch[i] for i in asking])
    requests = [
        DraftRequest(
            batch[i].draft_state,
            batch[i].token_ids,
            batch[i].plan,
            batch[i].sampler,
            drafts[i].token_ids,
            batch[i].cache,
        )
        for i in asking
    ]
    if lazily and isinstance(drafter, LazyDrafter):
        begun = drafter.begin_draft(requests)
        if begun is not None:
            found = dict(zip(asking, begun, strict=True))
            return [found.get(i, draft) for i, draft in enumerate(drafts)]
    for i, draft in zip(asking, _request(drafter, requests), strict=True):
        if isinstance(draft, HeadError):
            _disable_drafter(batch[i], draft)
        else:
            drafts[i] = _continued(drafts[i], draft, batch[i])
    return [*drafts]


def resolve_drafts(
    batch: Sequence[DecodingSequence], drafts: Sequence[Draft | PendingDraft], ops: Ops
) -> list[Draft]:
    """Read the drafts that were verified before they were read."""
    resolved = [NO_DRAFT if isinstance(one, PendingDraft) else one for one in drafts]
    pending = [(i, one) for i, one in enumerate(drafts) if isinstance(one, PendingDraft)]
    if not pending:
        return resolved
    assert isinstance(ops, LazyOps)
    found = ops.collect([one.begun for _, one in pending])
    for (i, draft), (token_ids, probs) in zip(pending, found, strict=True):
        try:
            resolved[i] = draft.resolve(token_ids, probs)
        except HeadError as error:
            _disable_drafter(batch[i], error)
    return resolved


def _disable_drafter(sequence: DecodingSequence, error: HeadError) -> None:
    """Continue without drafts: a failing drafter costs speed, never the answer."""
    sequence.draft_state, sequence.off_reason = None, str(error)


def _look_up(sequence: DecodingSequence, drafter: Drafter) -> Draft:
    """Draft by n-gram lookup, for an idle sequence."""
    threshold = sequence.plan.threshold(NGRAM)
    draft = drafter.look_up(sequence.draft_state, sequence.token_ids, threshold)
    return _continued(NO_DRAFT, draft, sequence) if draft.token_ids else NO_DRAFT


def _request(drafter: Drafter, requests: Sequence[DraftRequest]) -> list[Draft | HeadError]:
    """Draft for all at once; if that fails, for each alone, so that only one loses its draft."""
    try:
        return list(drafter.draft(requests))
    except HeadError as error:
        if len(requests) == 1:
            return [error]
    return [found for one in requests for found in _request(drafter, [one])]


def _draft_forced(
    batch: Sequence[DecodingSequence], context: int, max_rows: int | None
) -> list[Draft]:
    """Draft the tokens that grammars force."""
    forced = [_forced(sequence, context) for sequence in batch]
    if max_rows is not None:
        lengths = [sequence.plan.num_tokens for sequence in batch]
        forced = _share_rows(forced, lengths, max_rows)
    return [forced_draft(token_ids) for token_ids in forced]


def _forced(sequence: DecodingSequence, context: int) -> Sequence[int]:
    """Return the tokens a grammar forces now; possibly more than K, as they are nearly certain."""
    constraint = sequence.sampler.constraint
    is_off = sequence.plan.num_tokens == 0 and sequence.draft_state is None
    if constraint is None or is_off:
        return ()
    room = context - len(sequence.token_ids) - 1
    return constraint.forced()[: max(0, min(room, MAX_FORCED))]


def _share_rows(
    forced: Sequence[Sequence[int]], num_draft_tokens: Sequence[int], max_rows: int
) -> list[Sequence[int]]:
    """Shorten the longest spans evenly until all rows fit; each keeps at least K tokens."""
    beyond = [max(0, len(one) - k) for one, k in zip(forced, num_draft_tokens, strict=True)]
    left = max(0, max_rows - len(forced) - sum(num_draft_tokens))
    cut = list(forced)
    for place, i in enumerate(sorted(range(len(forced)), key=beyond.__getitem__)):
        share = min(beyond[i], left // (len(forced) - place))
        left -= share
        if beyond[i]:
            cut[i] = forced[i][: num_draft_tokens[i] + share]
    return cut


def _continued(forced: Draft, draft: Draft, sequence: DecodingSequence) -> Draft:
    """Return the part of a draft that the grammar allows; it begins with the forced tokens."""
    constraint = sequence.sampler.constraint
    if constraint is None:
        return draft
    num_forced = len(forced.token_ids)
    if draft.token_ids[:num_forced] != forced.token_ids:
        return replace(forced, num_steps=draft.num_steps)
    return forced + draft.part(num_forced, constraint.num_allowed(draft.token_ids))
