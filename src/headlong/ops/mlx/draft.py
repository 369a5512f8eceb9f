"""Whole drafts in MLX: all depths of a recursive head as one computation, picks included.

In:  the states that drafts start from, how their tokens are picked. Out: drafts, not yet computed.
The noise is the backbone's (`noise.py`), hashed in 64-bit integers; only its logarithms are float32
here, since Apple's GPUs have no float64. A guess that differs for that is just a guess.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import mlx.core as mx
import numpy as np

from headlong.ops.block_by_block import run_layer
from headlong.ops.draft_blocks import DraftBlocks
from headlong.ops.host_ops import PickRule
from headlong.ops.noise import noise_key
from headlong.ops.op_set import BegunDraft, DraftRow, Rows, Span

if TYPE_CHECKING:
    from headlong.ops.mlx.ops import MlxOps

_GOLDEN = 0x9E3779B97F4A7C15
_FACTORS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


class DraftNumbers(NamedTuple):
    """What the columns of a head's logits stand for."""

    token_ids: Any  # (V_draft,)
    multiples: Any  # (V_draft,), see `noise_multiples`


def begin_draft(ops: "MlxOps", blocks: DraftBlocks, rows: Sequence[DraftRow]) -> list[BegunDraft]:
    """Draft for all rows, depth after depth; those that want less drop out."""
    tokens: list[list[Any]] = [[] for _ in rows]
    probs: list[list[Any]] = [[] for _ in rows]
    states = {i: row.state for i, row in enumerate(rows)}
    active = list(states)
    depth = 0
    while active:
        carried = mx.stack([states[i] for i in active])
        logits = _score(ops, blocks, carried)
        for place, i in enumerate(active):
            row = rows[i]
            token, prob = _guess(ops, blocks, logits[place], row.rule, row.token_position + depth)
            tokens[i].append(token)
            probs[i].append(prob)
        going_on = [place for place, i in enumerate(active) if rows[i].num_tokens > depth + 1]
        active = [active[place] for place in going_on]
        if active:
            newest = mx.stack([tokens[i][-1] for i in active])
            own = [rows[i] for i in active]
            stepped = _step(ops, blocks, ops.rows(carried, going_on), newest, own, depth)
            states = dict(zip(active, stepped, strict=True))
        depth += 1
    return [
        BegunDraft(mx.stack(ids), mx.stack(chances))
        for ids, chances in zip(tokens, probs, strict=True)
    ]


def _score(ops: "MlxOps", blocks: DraftBlocks, state: Any) -> Any:
    normed = state if blocks.carries_normed else ops.norm(state, blocks.norm)
    logits = ops.project(normed, blocks.lm_head).astype(mx.float32)
    cap = blocks.logit_cap
    return logits if cap is None else mx.tanh(logits / cap) * cap


def _step(
    ops: "MlxOps",
    blocks: DraftBlocks,
    state: Any,
    token_ids: Any,
    rows: Sequence[DraftRow],
    depth: int,
) -> Any:
    """Run the head's layer over one row of every sequence: (N, H) → (N, H)."""
    embedded = ops.embed(blocks.embedding, token_ids, blocks.embedding_scale)
    spans = tuple(Span(i, 1, row.first_position + depth) for i, row in enumerate(rows))
    x, beside = state, embedded
    fusion = blocks.fusion
    if fusion is not None:
        halves = [ops.norm(embedded, fusion.embedding_norm), ops.norm(state, fusion.state_norm)]
        ordered = halves[::-1] if fusion.is_state_first else halves
        x, beside = ops.project(mx.concatenate(ordered, axis=-1), fusion.fc), None
    layers = [row.layer for row in rows]
    x = run_layer(ops, x, blocks.layer, layers, Rows(token_ids, spans), beside)
    return ops.norm(x, blocks.norm) if blocks.carries_normed else x


def _guess(
    ops: "MlxOps", blocks: DraftBlocks, logits: Any, rule: PickRule, position: int
) -> tuple[Any, Any]:
    """Return what the rule picks from a row of logits, (V_draft,), and its probability."""
    best = logits.max()
    numbers = ops.draft_numbers(blocks, len(logits))
    if rule.temperature == 0:
        column = mx.argmax(logits)
        prob = 1 / mx.exp(logits - best).sum()
    else:
        scaled = _filtered((logits - best) / rule.temperature, rule)
        column = mx.argmax(scaled + gumbel(noise_key(rule.seed, position), numbers.multiples))
        prob = mx.exp(scaled[column]) / mx.exp(scaled).sum()
    return numbers.token_ids[
        column
    ], prob + 0 * best  # not a number where the largest logit is none


def _filtered(scaled: Any, rule: PickRule) -> Any:
    """Put logits below all others that top-k, top-p and min-p drop; equal ones may stay."""
    if 0 < rule.top_k < len(scaled):
        scaled = mx.where(scaled >= mx.topk(scaled, rule.top_k).min(), scaled, -mx.inf)
    if rule.top_p < 1:
        ranked = -mx.sort(-scaled)
        probs = mx.softmax(ranked)
        is_kept = mx.cumsum(probs) - probs < rule.top_p
        scaled = mx.where(scaled >= mx.where(is_kept, ranked, mx.inf).min(), scaled, -mx.inf)
    if rule.min_p > 0:
        scaled = mx.where(scaled >= math.log(rule.min_p), scaled, -mx.inf)
    return scaled


def noise_multiples(token_ids: Any) -> Any:
    """Return what tokens bring to the hash of their noise, whatever the position: uint64."""
    return mx.array((token_ids.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN))


def gumbel(key: int, multiples: Any) -> Any:
    """Return the noise of tokens at the position of a key, in float32."""
    bits = multiples + mx.array(np.uint64(key))
    for shift, factor in _FACTORS:
        bits = (bits ^ (bits >> shift)) * mx.array(np.uint64(factor))
    steps = (bits ^ (bits >> 31)) >> 12  # of 2 ** -52
    parts = (steps, mx.array(np.uint64(2**52 - 1)) - steps)
    uniform, rest = ((part.astype(mx.float32) + 0.5) * 2.0**-52 for part in parts)
    # Near 1, where noise is large, only the rest to 1 has digits enough.
    return -mx.log(mx.where(rest < 0.5, -mx.log1p(-rest), -mx.log(uniform)))
