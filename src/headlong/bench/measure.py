"""Measure: put every question to every side, interleaved, and keep what was answered.

In:  sides, prompts, a plan. Out: `Measured`, one `Run` per question and side, also when a prompt
fails, time runs out or the user stops it. Sides answer each question one right after the other in
random order (fixed seed), so that drift of the machine affects all of them. A `Side` is this
process with or without MTP, or a server behind a URL.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from random import Random
from typing import Any, Protocol, TypeAlias

from headlong.bench.prompt_sets import BenchPrompt, short_hash
from headlong.bench.statistics import percentile
from headlong.decode.stats import DecodeStats
from headlong.errors import HeadlongError

FORMAT = 1
"""Of documents; raised when fields change their meaning."""

MAX_FAILURES = 3
"""So many questions in a row that a side does not answer: it is not there any more."""

STOPPED_BY_USER = "stopped with Ctrl-C"


Key: TypeAlias = tuple[str, float, int]
"""What was asked: prompt hash, temperature, number of the run."""

DEFAULT_MAX_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt as it is asked of every side: same temperature, seed and limit."""

    prompt: BenchPrompt
    temperature: float
    max_tokens: int
    run: int
    seed: int

    @property
    def key(self) -> Key:
        """What pairs the answers of all sides."""
        return self.prompt.hash, self.temperature, self.run


def time_pieces(times_s: Sequence[float]) -> dict[str, Any]:
    """Return how evenly an answer came, as fields of `TimedAnswer`, from when its pieces came."""
    gaps = [later - earlier for earlier, later in pairwise(times_s)]
    p50, p95 = (percentile(gaps, share) if gaps else None for share in (50, 95))
    return {"num_pieces": len(times_s), "gap_p50_s": p50, "gap_p95_s": p95}


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """One answer of one side, timed from where the question was put."""

    num_tokens: int
    ttft_s: float
    """Until the first token was there."""
    total_s: float
    """Until the last token was there."""
    text: str
    token_ids: tuple[int, ...] | None = None
    """Unknown behind a URL; texts are compared then."""
    num_pieces: int = 1
    gap_p50_s: float | None = None
    """Between one piece of the answer and the next, like `gap_p95_s`."""
    gap_p95_s: float | None = None
    num_prompt_tokens: int | None = None
    num_cached_tokens: int | None = None
    """Prompt tokens that were remembered from an earlier question."""
    finish_reason: str | None = None
    acceptance: DecodeStats | None = None
    prefill_s: float | None = None
    prefill_head_s: float | None = None
    is_counted_by_server: bool = False
    """Whether `num_tokens` is what a server says, not what we counted."""
    num_retries: int = 0
    """How often the server was busy before it took the question; not part of any time."""

    @property
    def text_hash(self) -> str:
        """The text in 16 letters: enough to see whether two are the same."""
        return short_hash(self.text.encode("utf-8", "surrogatepass"))

    @property
    def tokens_hash(self) -> str | None:
        """The tokens in 16 letters, where they are known."""
        return None if self.token_ids is None else short_hash(repr(self.token_ids).encode())


@dataclass(frozen=True, slots=True)
class Run:
    """One question put to one side: its answer, or why there is none."""

    side: str
    question: Question
    place: int
    """Which side answered first: 0, second: 1, …"""
    answer: TimedAnswer | None = None
    error: str | None = None


class Side(Protocol):
    """What answers questions: this process in one MTP mode, or a server."""

    @property
    def name(self) -> str:
        """One word for tables and files: off, auto, 4, A, B."""

    @property
    def label(self) -> str:
        """What is measured, for people."""

    def warm_up(self, question: Question) -> None:
        """Answer a little of a question, untimed, so that the first answer is not the slowest."""

    def answer(self, question: Question) -> TimedAnswer:
        """Answer a question; refuse with a `HeadlongError`."""


@dataclass(frozen=True, slots=True)
class Context:
    """What was measured where: everything a document says besides its numbers."""

    setup: Mapping[str, Any]
    """Model, drafter, backend, or what is known of a server."""
    prompts: Mapping[str, Any]
    conditions: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    num_planned: int = 0
    notes: Sequence[str] = ()
    """Whole sentences that the user should know before trusting a number."""

    def frame(self, kind: str, numbers: Mapping[str, Any]) -> dict[str, Any]:
        """Return a document: its kind, its numbers, then what they were measured with."""
        return {
            "kind": kind,
            "format": FORMAT,
            "num_planned": self.num_planned,
            "notes": list(self.notes),
            **numbers,
            "settings": dict(self.settings),
            "prompts": dict(self.prompts),
            "setup": dict(self.setup),
            "conditions": dict(self.conditions),
        }


@dataclass(frozen=True, slots=True)
class Measured:
    """All runs of a measurement, and what kept it from being whole."""

    runs: Sequence[Run]
    num_planned: int
    """Questions that were to be put."""
    stopped: str | None = None
    """Why it ended early, in words; None when it did not."""


@dataclass(frozen=True, slots=True)
class QuestionPlan:
    """What to ask, and how often."""

    prompts: Sequence[BenchPrompt]
    temperatures: tuple[float, ...] | None = None
    """None leaves it to each prompt, 0 where it says nothing."""
    max_tokens: int | None = None
    """None leaves it to each prompt, `DEFAULT_MAX_TOKENS` where it says nothing."""
    num_runs: int = 1
    seed: int = 0
    time_budget_s: float | None = None


def make_questions(plan: QuestionPlan) -> list[Question]:
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
    sides: Sequence[Side], plan: QuestionPlan, on_run: Callable[[Run], None] = lambda run: None
) -> Measured:
    """Put all questions to all sides; `on_run` hears of every answer as it comes."""
    questions = make_questions(plan)
    runs: list[Run] = []
    failures = dict.fromkeys((side.name for side in sides), 0)
    random, stopped = Random(plan.seed), None
    try:
        for side in sides:
            side.warm_up(questions[0])
        began_s = time.monotonic()
        for question in questions:
            is_over = plan.time_budget_s is not None and runs
            if is_over and time.monotonic() - began_s >= (plan.time_budget_s or 0):
                stopped = f"the time budget of {plan.time_budget_s:g} s was used up"
                break
            for run in _ask(sides, question, random, failures):
                runs.append(run)
                on_run(run)
            lost = [side.label for side in sides if failures[side.name] >= MAX_FAILURES]
            if lost:
                stopped = f"{lost[0]} did not answer {MAX_FAILURES} questions in a row"
                break
    except KeyboardInterrupt:
        stopped = STOPPED_BY_USER
    return Measured(runs, len(questions), stopped)


def _ask(
    sides: Sequence[Side], question: Question, random: Random, failures: dict[str, int]
) -> Iterator[Run]:
    """Put one question to all sides, in random order; count failures in a row of each side."""
    for place, side in enumerate(random.sample(sides, len(sides))):
        try:
            run = Run(side.name, question, place, answer=side.answer(question))
        except HeadlongError as error:
            run = Run(side.name, question, place, error=str(error))
        failures[side.name] = failures[side.name] + 1 if run.error else 0
        yield run


def _mix_tasks(prompts: Sequence[BenchPrompt], random: Random) -> list[BenchPrompt]:
    """Shuffle the prompts of each task and take from all tasks in turn."""
    by_task: dict[str, list[BenchPrompt]] = defaultdict(list)
    for prompt in prompts:
        by_task[prompt.task].append(prompt)
    for own in by_task.values():
        random.shuffle(own)
    rounds = zip_longest(*by_task.values())
    return [prompt for turn in rounds for prompt in turn if prompt is not None]
