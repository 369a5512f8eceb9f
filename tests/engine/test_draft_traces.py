"""The draft policy on recorded drafts of the shipped head, with measured prices of passes."""

from statistics import mean

import pytest

from policy_traces import MACHINES, auto_over_off, read_answers

BEFORE = 1.536
"""The mean of the policy of 1,398 lines that this one replaced."""


def test_auto_over_off_on_recorded_drafts() -> None:
    gains = [
        mean(auto_over_off(machine, temperature).values())
        for machine in MACHINES.values()
        for temperature in (0.0, 0.7)
    ]
    assert mean(gains) >= 0.97 * BEFORE


@pytest.mark.parametrize("noise", [0.04, 0.3])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_no_task_loses_with_eight_streams(temperature: float, noise: float) -> None:
    for seed in range(2):
        gains = auto_over_off(MACHINES["eight streams"], temperature, noise=noise, seed=seed)
        assert min(gains.values()) >= 0.97, gains


def test_every_task_is_recorded_at_both_temperatures() -> None:
    recorded = [(one.task, one.temperature) for one in read_answers()]
    assert len(recorded) == 54
    assert {recorded.count(one) for one in recorded} == {3}
