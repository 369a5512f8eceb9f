"""The round: draft, verify, accept, commit. Emits 1 to K+1 tokens per sequence from one pass.

In:  sequences with a prompt behind them, and how many draft tokens each is worth now.
Out: what each of them gained. Whatever the drafter says, the tokens are the backbone's own picks.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headlong.arrays import FloatArray
from headlong.decode.accept import accept
from headlong.decode.outcome import Verdict
from headlong.decode.sequence import DecodingSequence
from headlong.drafters.drafter import Draft, DraftAsk, Drafter, Settled
from headlong.errors import HeadError
from headlong.models.hidden import HiddenRows
from headlong.models.transformer import Backbone


@dataclass(frozen=True, slots=True)
class Verified:
    """What the backbone says of one sequence's last token and draft."""

    hidden: HiddenRows  # K+1 rows
    logits: FloatArray  # (K+1, V)


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What one round did for one sequence."""

    draft: Draft
    verdict: Verdict
    draft_s: float
    verify_s: float


def run_round(
    batch: Sequence[DecodingSequence],
    num_draft_tokens: Sequence[int],
    backbone: Backbone,
    drafter: Drafter | None,
) -> list[RoundResult]:
    """Move every sequence of the batch on with a single backbone pass."""
    began_s = time.perf_counter()
    drafts = _draft(batch, num_draft_tokens, drafter)
    drafted_s = time.perf_counter()
    verified = _verify(batch, drafts, backbone, drafter)
    verdicts = [
        accept(draft.token_ids, seen.logits, sequence.sampler)
        for sequence, draft, seen in zip(batch, drafts, verified, strict=True)
    ]
    verified_s = time.perf_counter()
    _commit(batch, verified, verdicts, drafter)
    draft_s = drafted_s - began_s + time.perf_counter() - verified_s
    return [
        RoundResult(draft, verdict, draft_s, verified_s - drafted_s)
        for draft, verdict in zip(drafts, verdicts, strict=True)
    ]


def _draft(
    batch: Sequence[DecodingSequence], num_draft_tokens: Sequence[int], drafter: Drafter | None
) -> list[Draft]:
    """Ask the drafter for every sequence that drafts now."""
    drafts = [Draft() for _ in batch]
    asking = [i for i, k in enumerate(num_draft_tokens) if k and batch[i].draft_state is not None]
    if drafter is None or not asking:
        return drafts
    asks = [
        DraftAsk(batch[i].draft_state, batch[i].token_ids, num_draft_tokens[i], batch[i].sampler)
        for i in asking
    ]
    try:
        for i, draft in zip(asking, drafter.draft(asks), strict=True):
            drafts[i] = draft
    except HeadError as error:  # a broken drafter costs speed, never the answer
        for i in asking:
            batch[i].draft_state, batch[i].off_reason = None, str(error)
    return drafts


def _verify(
    batch: Sequence[DecodingSequence],
    drafts: Sequence[Draft],
    backbone: Backbone,
    drafter: Drafter | None,
) -> list[Verified]:
    """Run the backbone once over each sequence's newest token and its draft."""
    token_ids = [
        np.array([sequence.token_ids[-1], *draft.token_ids])
        for sequence, draft in zip(batch, drafts, strict=True)
    ]
    drafts_now = any(sequence.draft_state is not None for sequence in batch)
    taps = drafter.tap_layers if drafter is not None and drafts_now else ()
    hidden = backbone.forward(token_ids, [sequence.cache for sequence in batch], taps)
    logits = backbone.logits(hidden.normed)  # (N, V)
    stops = np.cumsum([len(ids) for ids in token_ids])
    return [
        Verified(hidden.rows(stop - len(ids), stop), logits[stop - len(ids) : stop])
        for ids, stop in zip(token_ids, stops, strict=True)
    ]


def _commit(
    batch: Sequence[DecodingSequence],
    verified: Sequence[Verified],
    verdicts: Sequence[Verdict],
    drafter: Drafter | None,
) -> None:
    """Keep the rows that stand, drop the others, and tell the drafter what was settled."""
    settled: list[Settled] = []
    for sequence, seen, verdict in zip(batch, verified, verdicts, strict=True):
        num_rows = len(verdict.picks)
        sequence.cache.commit(num_rows)
        new_ids = [pick.token_id for pick in verdict.picks]
        sequence.token_ids += new_ids
        if sequence.draft_state is not None:
            hidden = seen.hidden.rows(0, num_rows)
            row_ids = np.array(sequence.token_ids[-1 - num_rows : -1])
            settled.append(Settled(sequence.draft_state, row_ids, hidden, np.array(new_ids)))
    if drafter is not None and settled:
        drafter.observe(settled)
