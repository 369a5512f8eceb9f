"""Prefill: run prompts through the backbone once, chunk by chunk, and pick their first tokens.

In:  sequences with tokens that are not in their caches, and how many rows each may run now.
Out: the first token of every complete prompt.
The drafter observes every chunk's hidden rows right after their pass, or they join the backlog, so
the prompt runs only once. How prompts are cut and batched changes no bit. A preempted sequence is
recomputed in the same way, but no token is picked at its end.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, TypeAlias

import numpy as np

from headlong.arrays import FloatArray, IntArray
from headlong.decode.draft_backlog import Kept, observe_kept
from headlong.decode.logprobs import token_logprob
from headlong.decode.pooling import PooledRows
from headlong.decode.sampling import Pick
from headlong.decode.sequence import DecodingSequence
from headlong.drafters.drafter import Drafter
from headlong.errors import HeadlongError
from headlong.models.hidden import HiddenRows
from headlong.models.transformer import Backbone

Score: TypeAlias = Callable[[Sequence[int]], FloatArray]
"""Returns logits of some rows of a pass, on the host: (N, V)."""

_ROWS_AT_A_TIME = 32
"""Rows of a prompt whose logits are computed together: with a large vocabulary these are large."""


@dataclass(frozen=True, slots=True)
class PromptChunk:
    """The next rows of one sequence's prompt."""

    sequence: DecodingSequence
    num_rows: int


class PrefillResult(NamedTuple):
    """The result of one prefill pass for one sequence."""

    pick: Pick | None = None
    """The first token, if the prompt is complete."""
    prefill_s: float = 0.0
    """Its share of the backbone's pass."""
    head_s: float = 0.0
    """Its share of the drafter's time."""
    error: HeadlongError | None = None
    """Why the sequence failed, if it did."""


def prefill(
    chunks: Sequence[PromptChunk], backbone: Backbone, drafter: Drafter | None
) -> list[PrefillResult]:
    """Run one pass over chunks of prompts."""
    began_s = time.perf_counter()
    ids = [_next_ids(chunk) for chunk in chunks]
    kept = _kept(chunks)
    observer = drafter if kept else None
    taps = () if observer is None else observer.tap_layers
    caches = [chunk.sequence.cache for chunk in chunks]
    hidden = backbone.forward(ids, caches, taps, all_or_none=True)
    ops = backbone.ops

    def score(rows: Sequence[int]) -> FloatArray:
        return backbone.logits(ops.rows(hidden.normed, rows))

    score_prompts(chunks, score)
    pool_prompts(chunks, hidden, backbone)
    picks = pick_first_tokens(chunks, score)
    passed_s = time.perf_counter()
    if observer is not None:
        observe_kept(observer, observer.features(hidden), kept)
    observed_s = time.perf_counter()
    for chunk in chunks:
        chunk.sequence.cache.commit(chunk.num_rows)
    per_row = 1 / sum(chunk.num_rows for chunk in chunks)
    return [
        PrefillResult(
            pick,
            chunk.num_rows * per_row * (passed_s - began_s),
            chunk.num_rows * per_row * (observed_s - passed_s)
            if chunk.sequence.draft_state is not None
            else 0.0,
        )
        for chunk, pick in zip(chunks, picks, strict=True)
    ]


def _next_ids(chunk: PromptChunk) -> IntArray:
    first = chunk.sequence.cache.length
    return np.array(chunk.sequence.token_ids[first : first + chunk.num_rows])


def score_prompts(chunks: Sequence[PromptChunk], score: Score) -> None:
    """Record the log-probabilities of the tokens after these rows, if requested."""
    start = 0
    for chunk in chunks:
        sequence, wanted = chunk.sequence, chunk.sequence.request.prompt_logprobs
        first, prompt_ids = sequence.cache.length, sequence.request.prompt_ids
        num = 0 if wanted is None else min(chunk.num_rows, len(prompt_ids) - 1 - first)
        for done in range(0, num, _ROWS_AT_A_TIME):
            rows = range(done, min(done + _ROWS_AT_A_TIME, num))
            for row, logits in zip(rows, score([start + row for row in rows]), strict=True):
                place = first + row + 1
                entry = token_logprob(logits, prompt_ids[place], wanted or 0)
                sequence.prompt_logprobs[place] = entry
        start += chunk.num_rows


def pool_prompts(chunks: Sequence[PromptChunk], hidden: HiddenRows, backbone: Backbone) -> None:
    """Add these rows to the embeddings of requests that asked for one."""
    start = 0
    for chunk in chunks:
        sequence = chunk.sequence
        kind, first = sequence.request.pooling, sequence.cache.length
        if kind is not None and not sequence.has_begun:
            sequence.pooled = sequence.pooled or PooledRows(kind)
            rows = backbone.ops.rows(hidden.normed, range(start, start + chunk.num_rows))
            sequence.pooled.add(first, backbone.ops.to_host(rows))
        start += chunk.num_rows


def pick_first_tokens(chunks: Sequence[PromptChunk], score: Score) -> list[Pick | None]:
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
    for i, row in zip(ended, score([stops[i] - 1 for i in ended]), strict=True):
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
