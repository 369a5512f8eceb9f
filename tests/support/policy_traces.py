"""Recorded drafts of the shipped head, in which policies can be compared.

`draft_traces.json.gz` holds what the head and n-gram lookup draft at every position of answers to
27 built-in prompts, three of each task, greedy and at temperature 0.7, and how many of these tokens
stand. It holds no text. Passes take what was measured on real machines.
"""

import gzip
import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from headlong.drafters.draft_plan import DraftPlan
from headlong.drafters.drafter import NGRAM, Draft
from headlong.engine.draft_policy import Candidate, DraftPolicy
from headlong.engine.request_policy import RequestPolicy
from policy_world import round_result

TRACES = Path(__file__).parent.parent / "engine" / "draft_traces.json.gz"

HEAD = "head"

BESIDE_S = 0.00025
"""What a round takes beside drafts and its pass."""


class Position(NamedTuple):
    """What can be drafted at one position of an answer."""

    probs: Sequence[float]
    sources: str
    """Of each token: "h" for the head, "n" for n-gram lookup."""
    num_stood: int
    lookup_prob: float | None
    """Of the single token that an idle request would look up; None without a match."""
    lookup_stood: int

    def draft(self, plan: DraftPlan) -> tuple[Draft, int]:
        """Return what is drafted under a plan, and how many of its tokens stand."""
        if plan.only_lookup:
            found = [] if self.lookup_prob is None else [self.lookup_prob]
            num_kept = plan.threshold(NGRAM).count_kept(found)
            return _make_draft(found[:num_kept], "n"), num_kept * self.lookup_stood
        probs = self.probs[: plan.num_tokens]
        num_head = self.sources[: plan.num_tokens].count("h")
        lookups = plan.threshold(NGRAM)
        if not num_head:
            num_kept = lookups.count_kept(probs)
            num_steps = int(bool(probs) and not num_kept)  # the head is asked instead
        else:
            threshold = plan.threshold(HEAD)
            num_steps = 1
            while num_steps < num_head and threshold.can_extend(probs[:num_steps]):
                num_steps += 1
            num_kept = threshold.count_kept(probs[:num_steps])
            if num_kept == num_head and threshold.can_extend(probs[:num_head]):
                num_kept += lookups.count_kept(probs[num_head:])
        draft = _make_draft(probs[:num_kept], self.sources, num_steps)
        return draft, min(num_kept, self.num_stood)


def _make_draft(probs: Sequence[float], sources: str, num_steps: int = 0) -> Draft:
    names = tuple(HEAD if source == "h" else NGRAM for source in sources[: len(probs)])
    return Draft((0,) * len(probs), tuple(probs), names, num_steps=num_steps)


class Answer(NamedTuple):
    """The recorded positions of one answer."""

    task: str
    temperature: float
    positions: Sequence[Position]


@cache
def read_answers() -> list[Answer]:
    """Return all recorded answers."""
    return [
        Answer(one["task"], one["temperature"], [Position(*row) for row in one["positions"]])
        for one in json.loads(gzip.decompress(TRACES.read_bytes()))
    ]


class Machine(NamedTuple):
    """What passes take: milliseconds from one row on, and of a second state if it flips."""

    pass_ms: Sequence[float]
    num_streams: int = 1
    other_pass_ms: Sequence[float] | None = None
    flip_s: float = 0.3

    def pass_s(self, num_rows: int, clock_s: float) -> float:
        """Return how long a pass takes that begins at this time."""
        curve = self.pass_ms
        if self.other_pass_ms is not None and clock_s // self.flip_s % 2:
            curve = self.other_pass_ms
        beyond = max(0, num_rows - len(curve)) * (curve[-1] - curve[-3]) / 2
        return (curve[min(num_rows, len(curve)) - 1] + beyond) / 1000


ONE_DIE = (3.35, 3.5, 3.75, 4.0, 4.4, 4.75, 4.95, 5.15, 5.5)
TWO_DIES = (2.8, 3.2, 3.75, 4.35, 5.05, 5.6, 6.2, 6.8, 7.4)
STEEP = (5.5, 6.1, 7.3, 8.2, 9.7, 11.2, 12.7, 14.2)
MANY_ROWS = (
    *(3.0, 3.5, 4.0, 4.5, 5.0, 5.5, 6.0, 6.4, 7.37, 7.72),
    *(8.3, 8.9, 9.5, 10.1, 10.7, 11.3, 12.3, 12.9, 13.5, 14.1),
)

MACHINES = {
    "one die": Machine(ONE_DIE),
    "two dies": Machine(TWO_DIES),
    "steep": Machine(STEEP),
    "flips": Machine(ONE_DIE, other_pass_ms=TWO_DIES),
    "eight streams": Machine(MANY_ROWS, num_streams=8),
}


@dataclass
class _Stream:
    policy: RequestPolicy
    positions: Sequence[Position]
    at: int = 0


def play_answers(
    answers: Sequence[Answer],
    machine: Machine,
    policy: DraftPolicy,
    *,
    noise: float = 0.0,
    seed: int = 0,
) -> float:
    """Decode answers in order, some at a time; return the speed over plain decoding.

    Plain rounds of as many streams stand against it, so that it does not matter in which order
    streams end.
    """
    rng, waiting, streams = random.Random(seed), list(answers), list[_Stream]()
    seconds = plain_s = 0.0
    while waiting or streams:
        while waiting and len(streams) < machine.num_streams:
            answer = waiting.pop(0)
            streams.append(
                _Stream(policy.new_request("auto", answer.temperature), answer.positions)
            )
        plans = policy.plan([Candidate(one.policy) for one in streams], max_rows=64)
        drafted = [
            one.positions[one.at].draft(plan) for one, plan in zip(streams, plans, strict=True)
        ]
        for one, (_, num_accepted) in zip(streams, drafted, strict=True):
            one.at += 1 + num_accepted
        pass_s = machine.pass_s(sum(len(draft.token_ids) + 1 for draft, _ in drafted), seconds)
        draft_s = _draft_s(plans, [draft for draft, _ in drafted])
        round_s = pass_s + draft_s + BESIDE_S
        num_accepted = sum(num for _, num in drafted)
        a_plain_s = machine.pass_s(len(streams), seconds) + BESIDE_S
        plain_s += (1 + num_accepted / len(streams)) * a_plain_s
        seconds += round_s
        going_on = [one for one in streams if one.at < len(one.positions)]
        blur = math.exp(rng.gauss(0.0, noise))
        results = [round_result(*one, draft_s * blur, pass_s * blur) for one in drafted]
        requests = [one.policy for one in streams]
        is_representative = len(going_on) == len(streams)
        policy.observe(requests, plans, results, round_s * blur, is_representative)
        streams = going_on
    return plain_s / seconds


def _draft_s(plans: Sequence[DraftPlan], drafts: Sequence[Draft]) -> float:
    """Return how long drafts take: per round, per request, per depth and per step, as measured."""
    steps = [
        draft.num_steps for plan, draft in zip(plans, drafts, strict=True) if plan.runs_drafter
    ]
    if not steps:
        return 0.0
    return 0.0002 + 0.00003 * len(steps) + 0.00006 * (max(steps) + sum(steps))


def auto_over_off(
    machine: Machine, temperature: float, *, noise: float = 0.04, seed: int = 0
) -> dict[str, float]:
    """Return the speed of "auto" over plain decoding by task; one policy sees all tasks in turn."""
    policy, found = DraftPolicy(), {}
    by_task: dict[str, list[Answer]] = {}
    for one in read_answers():
        if one.temperature == temperature:
            by_task.setdefault(one.task, []).append(one)
    for task, answers in sorted(by_task.items()):
        many = answers * (1 if machine.num_streams == 1 else 4)
        found[task] = play_answers(many, machine, policy, noise=noise, seed=seed)
    return found
