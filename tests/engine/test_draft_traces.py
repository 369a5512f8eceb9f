"""The draft policy on recorded drafts of the shipped head, with measured costs of passes."""

from statistics import mean

import pytest

from policy_traces import MACHINES, auto_over_off, read_answers

BEFORE = 1.546
"""The mean of the policy of 1,398 lines that this one replaced."""


def test_auto_over_off_on_recorded_drafts() -> None:
    gains = [
        mean(auto_over_off(machine, temperature).values())
        for machine in MACHINES.values()
        for temperature in (0.0, 0.7)
    ]
    assert mean(gains) >= 0.97 * BEFORE


@pytest.mark.parametrize("noise", [0.04, 0.15])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_no_task_loses_with_eight_streams(temperature: float, noise: float) -> None:
    """Guards costs of 9 to 16 rows that are wrong by chance, which make drafts seem cheap."""
    machine = MACHINES["eight streams"]
    runs = [auto_over_off(machine, temperature, noise=noise, seed=seed) for seed in range(3)]
    assert min(mean(run[task] for run in runs) for task in runs[0]) >= 0.97


def test_every_task_is_recorded_at_both_temperatures() -> None:
    recorded = [(one.task, one.temperature) for one in read_answers()]
    assert len(recorded) == 54
    assert {recorded.count(one) for one in recorded} == {3}
