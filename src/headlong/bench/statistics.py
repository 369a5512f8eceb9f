"""Speed-ups with intervals: a paired bootstrap over prompts, and percentiles.

In:  for every prompt the tokens and seconds of both sides, grouped into strata (tasks).
Out: the ratio of total tokens/s with a 95 % interval.
A prompt is drawn with both its sides, so that what makes it slow for both cancels out. Knows
nothing of models, prompts or reports.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
NUM_RESAMPLES = 4000

_NORMAL_QUANTILE = 1.959964
# Student's t at 97.5 %, by degrees of freedom; between them it is nearly straight in 1 / df.
_T_QUANTILES = {
    1: 12.706205, 2: 4.302653, 3: 3.182446, 4: 2.776445, 5: 2.570582, 6: 2.446912, 8: 2.306004,
    10: 2.228139, 15: 2.131450, 20: 2.085963, 30: 2.042272, 60: 2.000298, math.inf: 1.959964,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Totals:
    """What one side produced for one prompt, all its runs together."""

    num_tokens: int
    seconds: float


Pair: TypeAlias = tuple[Totals, Totals]
"""One prompt's totals: the baseline's, the candidate's."""

Sums: TypeAlias = NDArray[np.float64]
"""Tokens and seconds of the baseline, then of the candidate, in the last axis of four."""


@dataclass(frozen=True, slots=True)
class Speedup:
    """The candidate's tokens/s over the baseline's, with its interval."""

    value: float
    low: float | None
    """None, like `high`, when a single prompt leaves nothing to compare it with."""
    high: float | None
    num_prompts: int


def paired_speedup(strata: Sequence[Sequence[Pair]], seed: int = 0) -> Speedup | None:
    """Return the ratio of total tokens/s and its 95 % interval; None without a single pair.

    Prompts are drawn with replacement inside each stratum, one fewer than there are, which makes
    the spread unbiased. Few prompts say little about their own spread, so it is stretched by
    Student's t over the normal quantile. All on the logarithm, where a ratio is symmetric.
    """
    tables = [
        np.array([(a.num_tokens, a.seconds, b.num_tokens, b.seconds) for a, b in pairs], float)
        for pairs in _merge_singles(strata)
    ]  # each (prompts, 4)
    if not tables:
        return None
    everything = np.concatenate(tables)
    value = float(_log_ratio(everything.sum(axis=0)))
    num_prompts = len(everything)
    if num_prompts < 2:
        return Speedup(math.exp(value), None, None, num_prompts)
    sums = _resample(tables, np.random.default_rng(seed))
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(_log_ratio(sums), [tail, 100 - tail])
    stretch = t_quantile(_degrees_of_freedom(tables)) / _NORMAL_QUANTILE
    return Speedup(
        math.exp(value),
        math.exp(value - stretch * max(0.0, value - low)),
        math.exp(value + stretch * max(0.0, high - value)),
        num_prompts,
    )


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` per cent of `values` do not exceed, straight in between."""
    return float(np.percentile(values, share))


def t_quantile(degrees_of_freedom: float) -> float:
    """Return Student's t at 97.5 % for any number of degrees of freedom from 1."""
    inverse = [1 / df for df in reversed(_T_QUANTILES)]
    return float(np.interp(1 / degrees_of_freedom, inverse, list(reversed(_T_QUANTILES.values()))))


def _merge_singles(strata: Sequence[Sequence[Pair]]) -> list[list[Pair]]:
    """Put strata of a single prompt together: alone they cannot show any spread."""
    singles = [stratum[0] for stratum in strata if len(stratum) == 1]
    several = [list(stratum) for stratum in strata if len(stratum) > 1]
    if len(singles) == 1 and several:
        several[-1] = [*several[-1], *singles]
    elif singles:
        several.append(singles)
    return several


def _log_ratio(sums: Sums) -> Sums:
    logs = np.log(sums)
    result: Sums = logs[..., 2] - logs[..., 3] - logs[..., 0] + logs[..., 1]
    return result


def _resample(tables: Sequence[Sums], rng: np.random.Generator) -> Sums:
    """Draw every stratum again and again; return the sums of each draw."""
    total: Sums = np.zeros((NUM_RESAMPLES, 4))
    for table in tables:
        if len(table) < 2:
            total += table.sum(axis=0)
            continue
        drawn = rng.integers(0, len(table), (NUM_RESAMPLES, len(table) - 1))
        total += table[drawn].mean(axis=1) * len(table)
    return total  # (resamples, 4)


def _degrees_of_freedom(tables: Sequence[Sums]) -> float:
    """Return Satterthwaite's degrees of freedom of the spread over all strata."""
    totals = np.concatenate(tables).sum(axis=0)
    signs = np.array([-1.0, 1.0, 1.0, -1.0])
    variances, freedoms = [], []
    for table in tables:
        influence = (table / totals) @ signs  # how each prompt pulls the log ratio
        variances.append(len(table) * float(influence.var(ddof=1)))
        freedoms.append(len(table) - 1)
    top = sum(variances) ** 2
    bottom = sum(v**2 / df for v, df in zip(variances, freedoms, strict=True))
    # No spread at all: every prompt says the same, and how many there are does not matter.
    return top / bottom if bottom > 0 else float(sum(freedoms))
