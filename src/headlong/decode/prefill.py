"""Prefill: run prompts through the backbone once, chunk by chunk, and pick their first tokens.

In:  sequences with tokens that are not in their caches, and how many rows each may run now.
Out: the first token of every prompt that is through.
The drafter sees every chunk's hidden rows right after the pass that made them, or they wait for it;
a head never makes the prompt run a second time. How prompts are cut and put together changes no
bit. A sequence that had begun and lost its caches runs the same way, only nothing is picked at its
end.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from headlong.arrays import IntArray
from headlong.decode.observing import Kept, settle
from headlong.decode.sampling import Pick
from headlong.decode.sequence import DecodingSequence
from headlong.drafters.drafter import Drafter
from headlong.models.hidden import HiddenRows
from headlong.models.transformer import Backbone


@dataclass(frozen=True, slots=True)
class PromptChunk:
    """The next rows of one sequence's prompt."""

    sequence: DecodingSequence
    num_rows: int


def prefill(
    chunks: Sequence[PromptChunk], backbone: Backbone, drafter: Drafter | None
) -> list[Pick | None]:
    """Run one pass over chunks of prompts; return the first token where a prompt ended."""
    began_s = time.perf_counter()
    ids = [_next_ids(chunk) for chunk in chunks]
    listening = drafter is not None and any(one.sequence.draft_state is not None for one in chunks)
    taps = drafter.tap_layers if drafter is not None and listening else ()
    caches = [chunk.sequence.cache for chunk in chunks]
    hidden = backbone.forward(ids, caches, taps, all_or_none=True)
    picks = _pick_first_tokens(chunks, hidden, backbone)
    passed_s = time.perf_counter()
    if drafter is not None and listening:
        settle(drafter, drafter.features(hidden), _kept(chunks))
    for chunk in chunks:  # last: a pass that fails anywhere before is rolled back
        chunk.sequence.cache.commit(chunk.num_rows)
    observed_s = time.perf_counter()
    num_rows = sum(chunk.num_rows for chunk in chunks)
    for chunk in chunks:
        share, timings = chunk.num_rows / num_rows, chunk.sequence.timings
        timings.prefill_s += share * (passed_s - began_s)
        if chunk.sequence.draft_state is not None:
            timings.prefill_head_s += share * (observed_s - passed_s)
    return picks


def _next_ids(chunk: PromptChunk) -> IntArray:
    first = chunk.sequence.cache.length
    return np.array(chunk.sequence.token_ids[first : first + chunk.num_rows])


def _pick_first_tokens(
    chunks: Sequence[PromptChunk], hidden: HiddenRows, backbone: Backbone
) -> list[Pick | None]:
    """Pick a token for every prompt whose last row has run, and make it part of the sequence."""
    picks: list[Pick | None] = [None] * len(chunks)
    stops = list(accumulate(chunk.num_rows for chunk in chunks))
    ended = [
        i
        for i, chunk in enumerate(chunks)
        if not chunk.sequence.has_begun and chunk.sequence.num_rows_left == chunk.num_rows
    ]
    if not ended:
        return picks
    last_rows = backbone.ops.rows(hidden.normed, [stops[i] - 1 for i in ended])  # (N, H)
    logits = backbone.logits(last_rows)  # (N, V)
    for i, row in zip(ended, logits, strict=True):
        sequence = chunks[i].sequence
        pick = sequence.sampler.pick(row)
        sequence.sampler.push(pick.token_id)
        sequence.token_ids.append(pick.token_id)
        sequence.has_begun = True
        picks[i] = pick
    return picks


def _kept(chunks: Sequence[PromptChunk]) -> list[Kept]:
    """Return the rows of the sequences that draft."""
    stops = accumulate(chunk.num_rows for chunk in chunks)
    return [
        (chunk.sequence, stop - chunk.num_rows, stop)
        for chunk, stop in zip(chunks, stops, strict=True)
        if chunk.sequence.draft_state is not None
    ]
