"""The round: draft, verify, accept, commit. Emits 1 to K+1 tokens per sequence from one pass.

In:  sequences after prefill, each with a draft plan.
Out: a result for each. Whatever the drafter proposes, the tokens are the backbone's own picks.
The drafter observes accepted rows before anything is committed, so a failed pass leaves only
pending rows to roll back. A failure of one sequence does not affect the others.
"""

import time
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from headlong.arrays import FloatArray, IntArray
from headlong.decode.accept import accept
from headlong.decode.draft_backlog import Kept, observe_kept
from headlong.decode.drafting import draft_all, resolve_drafts
from headlong.decode.outcome import Verdict
from headlong.decode.sequence import DecodingSequence
from headlong.drafters.draft_plan import DraftPlan
from headlong.drafters.drafter import NO_DRAFT, Draft, Drafter, PendingDraft
from headlong.errors import HeadlongError
from headlong.models.transformer import Backbone


class RoundResult(NamedTuple):
    """The result of one round for one sequence."""

    draft: Draft = NO_DRAFT
    verdict: Verdict | None = None
    """None if the sequence failed; `error` says why."""
    draft_s: float = 0.0
    verify_s: float = 0.0
    error: HeadlongError | None = None
    plan: DraftPlan | None = None
    """The plan it followed, if it was begun with an earlier one than that of the call."""
    is_representative: bool = True
    """Whether its time is representative: not if something was compiled or captured for it."""


def run_round(
    batch: Sequence[DecodingSequence],
    backbone: Backbone,
    drafter: Drafter | None,
    max_rows: int | None = None,
) -> list[RoundResult]:
    """Run one round of every sequence by its plan, with a single backbone pass."""
    began_s = time.perf_counter()
    context, lazily = backbone.config.context_length, backbone.verifies_lazily
    begun = draft_all(batch, drafter, context, max_rows, lazily=lazily)
    drafted_s = time.perf_counter()

    # Verify: each sequence's newest token and its draft, all in one pass.
    token_ids = [_ids_to_verify(*pair) for pair in zip(batch, begun, strict=True)]
    firsts = [0, *accumulate(len(ids) for ids in token_ids)][:-1]
    pending = [
        (first + 1, draft.begun.token_ids)
        for first, draft in zip(firsts, begun, strict=True)
        if isinstance(draft, PendingDraft)
    ]
    is_observed = any(sequence.draft_state is not None for sequence in batch)
    observer = drafter if is_observed else None
    taps = () if observer is None else observer.tap_layers
    caches = [sequence.cache for sequence in batch]
    hidden = backbone.forward(token_ids, caches, taps, drafts=pending)
    logits = backbone.logits(hidden.normed)  # (N, V)
    drafts = resolve_drafts(batch, begun, backbone.ops)

    verdicts = [
        _judge(sequence, draft, logits[first : first + len(draft.token_ids) + 1])
        for sequence, draft, first in zip(batch, drafts, firsts, strict=True)
    ]
    verified_s = time.perf_counter()
    kept = _extend_tokens(batch, firsts, verdicts)
    if observer is not None and kept:
        observe_kept(observer, observer.features(hidden), kept)
    for sequence, verdict in zip(batch, verdicts, strict=True):
        sequence.cache.commit(0 if isinstance(verdict, HeadlongError) else len(verdict.picks))

    draft_s = drafted_s - began_s + time.perf_counter() - verified_s
    verify_s = verified_s - drafted_s
    return [
        RoundResult(draft, None, draft_s, verify_s, verdict)
        if isinstance(verdict, HeadlongError)
        else RoundResult(draft, verdict, draft_s, verify_s)
        for draft, verdict in zip(drafts, verdicts, strict=True)
    ]


def _ids_to_verify(sequence: DecodingSequence, draft: Draft | PendingDraft) -> IntArray:
    """Return the newest token and the draft; zeros stand for a draft that was not read yet."""
    drafted = [0] * draft.num_tokens if isinstance(draft, PendingDraft) else draft.token_ids
    return np.array([sequence.token_ids[-1], *drafted])


def _judge(sequence: DecodingSequence, draft: Draft, logits: FloatArray) -> Verdict | HeadlongError:
    """Accept the leading tokens of one draft; return failures, so that the others continue."""
    try:
        return accept(draft.token_ids, logits, sequence.sampler)
    except HeadlongError as error:
        return error


def _extend_tokens(
    batch: Sequence[DecodingSequence],
    first_rows: Sequence[int],
    verdicts: Sequence[Verdict | HeadlongError],
) -> list[Kept]:
    """Append the picks to their sequences; return the rows for a drafter to observe."""
    kept: list[Kept] = []
    for sequence, first, verdict in zip(batch, first_rows, verdicts, strict=True):
        if isinstance(verdict, HeadlongError):
            continue
        sequence.token_ids += [pick.token_id for pick in verdict.picks]
        if sequence.draft_state is not None:
            kept.append((sequence, first, first + len(verdict.picks)))
    return kept
