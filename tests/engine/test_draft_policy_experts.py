"""The draft policy in worlds with experts: every row of a pass reads others, so few drafts pay."""

import math

import pytest

from policy_world import World, best_fixed, play

NUM_ROUNDS = 240


def experts_pass(num_rows: float) -> float:
    """A mixture whose rows choose 8 of 256 experts each, which are two thirds of a plain pass."""
    read = (1 - math.pow(1 - 8 / 256, num_rows)) / (8 / 256)
    return 0.05 * (0.33 + 0.67 * read + 0.03 * (num_rows - 1))


@pytest.mark.parametrize("num_sequences", [1, 4])
@pytest.mark.parametrize("chance", [0.4, 0.75, 0.85])
def test_auto_does_not_lose_where_every_row_reads_other_experts(
    chance: float, num_sequences: int
) -> None:
    """Four rows take three times as long as one; a draft of three tokens pays only above 0.8."""
    world = World(
        experts_pass,
        step_s=0.003,
        shared_step_s=0.0015,
        chance=lambda rng, time: chance,
        noise=0.05,
    )
    _, best = best_fixed(world, NUM_ROUNDS, num_sequences)
    auto = play(world, "auto", NUM_ROUNDS, num_sequences).tokens_per_second
    assert auto >= 0.95 * best
