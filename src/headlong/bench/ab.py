"""A/B: put every question to every side, interleaved, and keep whatever was measured.

In:  sides, prompts, a plan. Out: `Measured`, also when a prompt fails, time runs out or the user
stops it. Sides answer each question one right after the other in random order (fixed seed), so that
a machine that gets warmer or busier does it to all of them. Knows nothing of models or servers.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from random import Random

from headlong.bench.measure import Measured, Question, Run, Side
from headlong.bench.prompt_sets import BenchPrompt
from headlong.errors import HeadlongError

MAX_FAILURES = 3
"""So many questions in a row that a side does not answer: it is not there any more."""

STOPPED_BY_USER = "stopped with Ctrl-C"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to ask, and how often."""

    prompts: Sequence[BenchPrompt]
    temperatures: tuple[float, ...] | None = None
    """None leaves it to each prompt, 0 where it says nothing."""
    max_tokens: int | None = None
    """None leaves it to each prompt, `DEFAULT_MAX_TOKENS` where it says nothing."""
    num_runs: int = 1
    seed: int = 0
    time_budget_s: float | None = None


DEFAULT_MAX_TOKENS = 128


def make_questions(plan: Plan) -> list[Question]:
    """List all questions so that any beginning of the list has about as much of every task."""
    return [
        Question(
            prompt,
            temperature,
            plan.max_tokens or prompt.max_tokens or DEFAULT_MAX_TOKENS,
            run,
            plan.seed + run,
        )
        for run in range(plan.num_runs)
        for prompt in _mix_tasks(plan.prompts, Random(plan.seed + run))
        for temperature in plan.temperatures or (prompt.temperature or 0.0,)
    ]


def run_ab(
    sides: Sequence[Side], plan: Plan, on_run: Callable[[Run], None] = lambda run: None
) -> Measured:
    """Put all questions to all sides; `on_run` hears of every answer as it comes."""
    questions = make_questions(plan)
    runs: list[Run] = []
    loop = _Loop(sides, Random(plan.seed), runs, on_run)
    stopped = None
    try:
        for side in sides:
            side.warm_up(questions[0])
        began_s = time.monotonic()
        for question in questions:
            is_over = plan.time_budget_s is not None and runs
            if is_over and time.monotonic() - began_s >= (plan.time_budget_s or 0):
                stopped = f"the time budget of {plan.time_budget_s:g} s was used up"
                break
            loop.ask(question)
            if lost := loop.lost_side():
                stopped = f"{lost} did not answer {MAX_FAILURES} questions in a row"
                break
    except KeyboardInterrupt:
        stopped = STOPPED_BY_USER
    return Measured(runs, len(questions), stopped)


@dataclass(slots=True)
class _Loop:
    sides: Sequence[Side]
    random: Random
    runs: list[Run]
    on_run: Callable[[Run], None]
    failures: dict[str, int] = field(default_factory=dict)
    """Per side, how many questions in a row it has not answered."""

    def ask(self, question: Question) -> None:
        """Put one question to all sides, in random order."""
        order = self.random.sample(self.sides, len(self.sides))
        for place, side in enumerate(order):
            try:
                run = Run(side.name, question, place, answer=side.answer(question))
            except HeadlongError as error:
                run = Run(side.name, question, place, error=str(error))
            self.failures[side.name] = self.failures.get(side.name, 0) + 1 if run.error else 0
            self.runs.append(run)
            self.on_run(run)

    def lost_side(self) -> str | None:
        """Name a side that has failed too often in a row."""
        for side in self.sides:
            if self.failures.get(side.name, 0) >= MAX_FAILURES:
                return side.label
        return None


def _mix_tasks(prompts: Sequence[BenchPrompt], random: Random) -> list[BenchPrompt]:
    """Shuffle the prompts of each task and take from all tasks in turn."""
    by_task: dict[str, list[BenchPrompt]] = defaultdict(list)
    for prompt in prompts:
        by_task[prompt.task].append(prompt)
    for own in by_task.values():
        random.shuffle(own)
    rounds = zip_longest(*by_task.values())
    return [prompt for turn in rounds for prompt in turn if prompt is not None]
