"""What decides the gain: the share of its differences that each factor explains.

In:  the levels of measured cells and the logarithm of each one's speed-up.
Out: a share for every factor, the strongest interplay of two, and for every level the speed-up it
     stands for when all else is equal. An additive model is fitted by least squares; a factor's
     share is what it adds to the fit, averaged over all orders of adding factors (Shapley), less
     what as many random columns would add. In a full grid that is the classic analysis of
     variance. Knows nothing of prompts, models or words.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Levels: TypeAlias = Mapping[str, Any]
"""One cell: the level of every factor; None where a factor plays no part in it."""

Matrix: TypeAlias = NDArray[np.float64]

MIN_SPARE = 4
"""Cells there must be beyond the numbers that are fitted."""

MIN_CELLS = 3
"""Cells a level needs; one or two may be lucky."""


@dataclass(frozen=True, slots=True)
class LevelEffect:
    """The fitted speed-up of a level, all else equal."""

    level: Any
    speedup: float
    num_cells: int


@dataclass(frozen=True, slots=True)
class FactorEffect:
    """What one factor does."""

    factor: str
    share: float
    """Of the variance of the logarithm of speed-ups, from 0 to 1."""
    levels: tuple[LevelEffect, ...]


@dataclass(frozen=True, slots=True)
class Interplay:
    """How much it matters that two factors act together."""

    factors: tuple[str, str]
    share: float


@dataclass(frozen=True, slots=True)
class Effects:
    """Everything there is to say about what decides the gain."""

    num_cells: int
    spread: float
    """Standard deviation of the logarithm: 0.1 means that speed-ups differ by some 10 %."""
    factors: tuple[FactorEffect, ...]
    """By share, the largest first."""
    untold: tuple[str, ...]
    """Factors of which nothing can be said: hardly more than one level was measured."""
    interplay: Interplay | None
    """The strongest of all pairs; None if none is significant."""

    @property
    def unexplained(self) -> float:
        """The share that single factors leave: interplay and noise."""
        return max(0.0, 1.0 - sum(factor.share for factor in self.factors))


def explain(cells: Sequence[Levels], logs: Sequence[float]) -> Effects | None:
    """Return what decides `logs`; None when there are too few cells, or all are the same."""
    values = np.asarray(logs, dtype=np.float64)
    columns = {name: _code(cells, name) for name in (cells[0] if cells else ())}
    varied = [name for name, coded in columns.items() if coded.shape[1]]
    untold = tuple(name for name in varied if not _is_told(cells, name))
    # What a cell or two say of a level would bend all other numbers, so it is left out.
    columns = {name: columns[name] for name in varied if name not in untold}
    if not columns:
        return None
    fit = _Fit(values, columns)
    num_spare = len(values) - fit.rank(tuple(columns))
    if num_spare < MIN_SPARE or fit.total <= 1e-12:
        return None
    shares = _share_out(fit, num_spare)
    effects = [
        FactorEffect(name, shares[name], _level_effects(fit, cells, name)) for name in columns
    ]
    return Effects(
        num_cells=len(values),
        spread=float(values.std(ddof=1)),
        factors=tuple(sorted(effects, key=lambda effect: -effect.share)),
        untold=untold,
        interplay=_strongest_pair(fit),
    )


def _is_told(cells: Sequence[Levels], name: str) -> bool:
    """Tell whether two levels at least were measured often enough to compare them."""
    counts = Counter(cell[name] for cell in cells if cell[name] is not None)
    return sum(count >= MIN_CELLS for count in counts.values()) >= 2


def _code(cells: Sequence[Levels], name: str) -> Matrix:
    """Return a factor's columns: they add up to 0 over its levels, and are 0 where it is None."""
    found = [cell[name] for cell in cells]
    levels = list(dict.fromkeys(level for level in found if level is not None))
    rows = np.zeros((len(found), max(0, len(levels) - 1)))
    for row, level in zip(rows, found, strict=True):
        if level is None:
            continue
        if level == levels[-1]:
            row[:] = -1.0
        else:
            row[levels.index(level)] = 1.0
    return rows  # (cells, levels - 1)


class _Fit:
    """Least squares of the values on the columns of some factors, always with a mean."""

    def __init__(self, values: Matrix, columns: Mapping[str, Matrix]) -> None:
        self.values, self.columns = values, columns
        self.total = float(((values - values.mean()) ** 2).sum())
        self._explained: dict[frozenset[str], float] = {frozenset(): 0.0}

    def matrix(self, names: Sequence[str], extra: Matrix | None = None) -> Matrix:
        """Return the columns of some factors, and more beside them."""
        parts = [np.ones((len(self.values), 1)), *(self.columns[name] for name in names)]
        return np.hstack(parts if extra is None else [*parts, extra])

    def rank(self, names: Sequence[str]) -> int:
        """Return how many numbers some factors have to fit."""
        return int(np.linalg.matrix_rank(self.matrix(names)))

    def solve(self, matrix: Matrix) -> tuple[Matrix, float, int]:
        """Return the coefficients, the share explained, and how many numbers were fitted."""
        found, _, rank, _ = np.linalg.lstsq(matrix, self.values, rcond=None)
        coefficients = np.asarray(found, dtype=np.float64)
        rest = float(((self.values - matrix @ coefficients) ** 2).sum())
        return coefficients, 1.0 - rest / self.total, int(rank)

    def explained(self, names: Sequence[str]) -> float:
        """Return the share that some factors explain together."""
        key = frozenset(names)
        if key not in self._explained:
            self._explained[key] = self.solve(self.matrix(sorted(key)))[1]
        return self._explained[key]


def _share_out(fit: _Fit, num_spare: int) -> dict[str, float]:
    """Return each factor's Shapley share, less what chance alone would give it."""
    names = tuple(fit.columns)
    full = fit.explained(names)
    chance = (1.0 - full) / num_spare  # what one random column explains
    shares = {}
    for name in names:
        others = [other for other in names if other != name]
        share = 0.0
        for size in range(len(others) + 1):
            weight = 1.0 / (len(names) * math.comb(len(others), size))
            share += weight * sum(
                fit.explained((*subset, name)) - fit.explained(subset)
                for subset in combinations(others, size)
            )
        degrees = fit.rank(names) - fit.rank(others)
        shares[name] = max(0.0, share - degrees * chance)
    return shares


def _level_effects(fit: _Fit, cells: Sequence[Levels], name: str) -> tuple[LevelEffect, ...]:
    """Return the speed-up of each level in the full additive model."""
    names = list(fit.columns)
    coefficients, _, _ = fit.solve(fit.matrix(names))
    start = 1 + sum(fit.columns[other].shape[1] for other in names[: names.index(name)])
    own = coefficients[start : start + fit.columns[name].shape[1]]
    levels = [cell[name] for cell in cells]
    known = list(dict.fromkeys(level for level in levels if level is not None))
    effects = [*own, -own.sum()]
    return tuple(
        LevelEffect(level, math.exp(coefficients[0] + effect), levels.count(level))
        for level, effect in zip(known, effects, strict=True)
    )


def _strongest_pair(fit: _Fit) -> Interplay | None:
    """Return the pair whose products explain most beyond the factors themselves."""
    names = tuple(fit.columns)
    base, base_rank = fit.explained(names), fit.rank(names)
    best = None
    for one, other in combinations(names, 2):
        products = fit.columns[one][:, :, None] * fit.columns[other][:, None, :]
        matrix = fit.matrix(names, products.reshape(len(fit.values), -1))
        _, explained, rank = fit.solve(matrix)
        num_spare = len(fit.values) - rank
        if num_spare < MIN_SPARE:
            continue
        share = explained - base - (rank - base_rank) * (1.0 - explained) / num_spare
        if share > 0 and (best is None or share > best.share):
            best = Interplay((one, other), share)
    return best
