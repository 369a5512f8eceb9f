"""The slow truth of sampling: what the docstrings promise, in plain Python over sorted lists.

Nothing here is shared with the fast path except the noise itself.
"""

import math
from collections.abc import Sequence

import numpy as np

from headlong.arrays import FloatArray
from headlong.config import SamplingParams
from headlong.ops.noise import gumbel


def adjust(
    logits: Sequence[float],
    params: SamplingParams,
    prompt_ids: Sequence[int],
    answer_ids: Sequence[int],
) -> list[float]:
    """Apply penalties and bias to every token of the vocabulary."""
    adjusted = []
    for token_id, logit in enumerate(logits):
        value = float(logit)
        if token_id in prompt_ids or token_id in answer_ids:
            factor = params.repetition_penalty
            value = value / factor if value > 0 else value * factor
        count = list(answer_ids).count(token_id)
        if count:
            value -= params.presence_penalty
            value -= params.frequency_penalty * count
        value = float(np.float32(value))
        value += params.logit_bias.get(token_id, 0.0)
        adjusted.append(float(np.float32(value)))
    return adjusted


def survivors(logits: Sequence[float], params: SamplingParams) -> list[int]:
    """Return the token ids that the filters leave, best first."""
    best = max(logits)
    ranking = sorted(range(len(logits)), key=lambda token_id: (-logits[token_id], token_id))
    if params.top_k:
        ranking = ranking[: params.top_k]
    if params.top_p < 1:
        weights = [math.exp((logits[i] - best) / params.temperature) for i in ranking]
        wanted = params.top_p * math.fsum(weights)
        num_kept = 1
        while num_kept < len(ranking) and math.fsum(weights[:num_kept]) < wanted:
            num_kept += 1
        ranking = ranking[:num_kept]
    return [i for i in ranking if math.exp((logits[i] - best) / params.temperature) >= params.min_p]


def is_on_the_edge(logits: Sequence[float], params: SamplingParams) -> bool:
    """Tell whether rounding alone may move a top-p or min-p boundary."""
    best = max(logits)
    ranking = sorted(logits, reverse=True)[: params.top_k or None]
    weights = [math.exp((logit - best) / params.temperature) for logit in ranking]
    total = math.fsum(weights)
    shares = [math.fsum(weights[:n]) / total for n in range(1, len(weights) + 1)]
    return any(abs(share - params.top_p) < 1e-9 for share in shares[:-1]) or any(
        abs(weight - params.min_p) < 1e-9 for weight in weights
    )


def probs(logits: Sequence[float], params: SamplingParams) -> dict[int, float]:
    """Return the exact probability of every token that can be drawn."""
    best = max(logits)
    kept = survivors(logits, params)
    weights = [math.exp((logits[i] - best) / params.temperature) for i in kept]
    return {i: weight / math.fsum(weights) for i, weight in zip(kept, weights, strict=True)}


def pick(logits: Sequence[float], params: SamplingParams, position: int) -> int:
    """Return argmax(processed logits + noise) of logits that are already adjusted."""
    if params.temperature == 0:
        return min(range(len(logits)), key=lambda token_id: (-logits[token_id], token_id))
    kept = sorted(survivors(logits, params))
    noise = gumbel(params.seed, position, np.array(kept))
    scores = [logits[i] / params.temperature + n for i, n in zip(kept, noise, strict=True)]
    return kept[scores.index(max(scores))]


def rows(*logits: Sequence[float]) -> FloatArray:
    """Return hand-written logits as the array a backbone would give."""
    return np.array(logits, dtype=np.float32)
