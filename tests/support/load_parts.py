"""Parts for tests of loads: slices whose figures are known, and a client that answers by rule."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench_parts import make_prompt
from headlong.bench.load_run import Ending, LoadLevel, LoadLog, LoadPlan, RequestRecord, Slice
from headlong.bench.load_summary import summarise_load
from headlong.bench.measure import Context, Question, Run, TimedAnswer
from headlong.decode.stats import DecodeStats

CLASSES = ("agents", "chat")
NUM_PROMPTS = 4


def make_load_plan(**changes: Any) -> LoadPlan:
    """Return a plan: two classes, two levels, off against auto."""
    parts: dict[str, Any] = {
        "levels": [LoadLevel(1), LoadLevel(4)],
        "modes": ["off", "auto"],
        "prompts": {name: [make_prompt(n, name) for n in range(NUM_PROMPTS)] for name in CLASSES},
        "weights": dict.fromkeys(CLASSES, 1.0),
        "duration_s": 20.0,
    }
    return LoadPlan(**parts | changes)


def make_asked(
    question: Question, mode: str, began_s: float, seconds: float, num_tokens: int = 10
) -> RequestRecord:
    """Return an answer whose tokens come evenly, the first after a tenth of the time."""
    steps = [began_s + seconds * (0.1 + 0.9 * n / (num_tokens - 1)) for n in range(num_tokens)]
    answer = TimedAnswer(
        num_tokens=num_tokens,
        ttft_s=0.1 * seconds,
        total_s=seconds,
        text="the same",
        is_counted_by_server=True,
        acceptance=DecodeStats(5, 10, 5, accepted_at_depth=[5])
        if mode == "auto"
        else DecodeStats(10, 0, 0),
        finish_reason="stop",
    )
    return RequestRecord(Run(mode, question, 0, answer=answer), Ending.DONE, began_s, tuple(steps))


def make_log(
    plan: LoadPlan, seconds: Callable[[str, LoadLevel, str], float], num_pairs: int = 2
) -> LoadLog:
    """Return a log in which every prompt is asked once per slice, one after the other."""
    log = LoadLog()
    for level in plan.levels:
        for pair in range(num_pairs):
            for mode in plan.modes:
                log.slices.append(_make_slice(plan, level, pair, mode, seconds))
    return log


def _make_slice(
    plan: LoadPlan,
    level: LoadLevel,
    pair: int,
    mode: str,
    seconds: Callable[[str, LoadLevel, str], float],
) -> Slice:
    now_s, asked = 100.0, []
    for name, prompts in plan.prompts.items():
        for prompt in prompts:
            own_s = seconds(mode, level, name)
            asked.append(make_asked(Question(prompt, 0.0, 10, pair, pair), mode, now_s, own_s))
            now_s += own_s
    return Slice(level, pair, mode, now_s - 100.0, 100.0, asked)


def make_load_document(log: LoadLog, plan: LoadPlan, **changes: Any) -> dict[str, Any]:
    """Return the document of a log."""
    parts: dict[str, Any] = {
        "setup": {"url": "http://h/v1", "model": "m"},
        "prompts": {"source": "made up", "num": 8, "hash": "0123", "skipped": []},
        "conditions": {"cpu": "some cpu", "num_cores": 2},
    }
    return summarise_load(log, plan, Context(**parts | changes))


@dataclass
class ScriptedClient:
    """Answers by rule and remembers what it was asked."""

    reply: Callable[[Question, str], Any]
    """Returns a `RequestRecord`, or waits for one."""
    asked: list[tuple[str, Question]] = field(default_factory=list)
    num_open: int = 0
    most_open: int = 0

    async def ask(self, question: Question, mode: str) -> RequestRecord:
        """Note the question and reply."""
        self.asked.append((mode, question))
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        try:
            found = await self.reply(question, mode)
        finally:
            self.num_open -= 1
        assert isinstance(found, RequestRecord)
        return found


def endings(slices: Sequence[Slice]) -> list[Ending]:
    """Return how all requests ended."""
    return [asked.ending for one in slices for asked in one.asked]
