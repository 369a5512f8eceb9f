"""Picks on the device against numpy's, which define them."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from headlong.arrays import FloatArray
from headlong.ops.host_ops import PickRule
from headlong.ops.noise import noise_stream
from headlong.ops.numpy.host import NumpyHost
from native_parts import random

torch = pytest.importorskip("torch")
from headlong.ops.cuda.pick import (  # noqa: E402  # needs torch
    Draw,
    PickRows,
    pick_columns,
    probs_of,
)

torch.set_num_threads(1)
HOST = NumpyHost()
GREEDY = PickRule(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=2**64 - 1)
RULES = [
    replace(GREEDY, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    for seed, (temperature, top_k, top_p, min_p) in enumerate(
        product([0.0, 1e-9, 0.3, 0.7, 1.0, 2.0], [0, 1, 7, 5000], [1.0, 0.9, 0.3], [0.0, 0.1])
    )
]


def pick_rows(rules: list[PickRule]) -> PickRows:
    """Return rules as they lie on a device."""
    streams = np.array([noise_stream(one.seed) for one in rules], np.uint64).view(np.int64)
    return PickRows(
        torch.tensor([one.temperature for one in rules], dtype=torch.float64),
        torch.tensor([one.top_k for one in rules]),
        torch.tensor([one.top_p for one in rules], dtype=torch.float64),
        torch.tensor([one.min_p for one in rules], dtype=torch.float64),
        torch.from_numpy(streams),
    )


def rows_of_logits(num_rows: int, size: int, looks: str) -> FloatArray:
    """Return rows that are smooth, full of ties, or mostly minus infinity."""
    rows = random(num_rows, num_rows, size) * np.float32(3)
    if looks == "tied":
        rows = rows.round().astype(np.float32)
    if looks == "full of holes":
        rows[:, ::3] = -np.inf
    return rows


@pytest.mark.parametrize("looks", ["smooth", "tied", "full of holes"])
@pytest.mark.parametrize("size", [5, 997, 4001])
def test_picks_are_those_of_the_host(looks: str, size: int) -> None:
    logits = rows_of_logits(len(RULES), size, looks)
    for shift in range(3):
        positions = torch.arange(len(RULES)) + 1000 * shift
        picked = pick_columns(torch.from_numpy(logits), pick_rows(RULES), positions, Draw.FILTERS)
        wanted = [
            HOST.pick(row, rule, int(position))
            for row, rule, position in zip(logits, RULES, positions, strict=True)
        ]
        assert picked.columns.tolist() == wanted
        assert picked.is_finite.all()


def test_a_row_needs_no_more_than_it_asks_for() -> None:
    """Which rows are beside it decides how it is computed, never what it picks."""
    logits = torch.from_numpy(rows_of_logits(len(RULES), 301, "tied"))
    positions = torch.arange(len(RULES))
    together = pick_columns(logits, pick_rows(RULES), positions, Draw.FILTERS).columns
    for i, rule in enumerate(RULES):
        draw = Draw.FILTERS if rule.filters(301) else Draw.NOISE
        draw = draw if rule.temperature else Draw.GREEDY
        own = slice(i, i + 1)
        alone = pick_columns(logits[own], pick_rows([rule]), positions[own], draw)
        assert alone.columns.tolist() == [together[i]]


def test_columns_of_a_draft_vocabulary_have_their_tokens_noise() -> None:
    logits = rows_of_logits(3, 400, "smooth")
    ids = np.sort(np.random.default_rng(0).choice(5000, 400, replace=False))
    rule = replace(GREEDY, temperature=0.8, seed=3)
    positions = torch.tensor([4, 5, 6])
    token_ids = torch.from_numpy(ids)
    rows = pick_rows([rule] * 3)
    picked = pick_columns(torch.from_numpy(logits), rows, positions, Draw.NOISE, token_ids)
    for row, column, position in zip(logits, picked.columns.tolist(), [4, 5, 6], strict=True):
        wide: FloatArray = np.full(5000, -np.inf, np.float32)
        wide[ids] = row
        assert ids[column] == HOST.pick(wide, rule, position)


def test_rows_without_a_finite_maximum_are_told() -> None:
    logits = torch.zeros(4, 6)
    logits[1, 2] = torch.nan
    logits[2, 3] = torch.inf
    logits[3] = -torch.inf
    for draw in Draw:
        picked = pick_columns(logits, pick_rows(RULES[:4]), torch.arange(4), draw)
        assert picked.is_finite.tolist() == [True, False, False, False]
        assert int(picked.columns.max()) < 6


def test_probabilities_are_those_of_the_temperature() -> None:
    logits = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    rules = pick_rows([GREEDY, replace(GREEDY, temperature=0.5)])
    found = probs_of(logits, torch.tensor([1, 0]), rules)
    expected = [1 / (1 + np.exp(-1)), 1 / (1 + np.exp(2))]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)
