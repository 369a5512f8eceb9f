"""Parts for tests of measurements: a clock that is told the time, sides whose answers are known."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headlong.bench.conclusion import Wording
from headlong.bench.measure import Question, Run, TimedAnswer
from headlong.bench.prompt_sets import BenchPrompt, PromptSet
from headlong.bench.rows import Row, make_row
from headlong.bench.summary import BenchContext, summarise
from headlong.decode.stats import DecodeStats
from headlong.errors import HeadlongError


@dataclass
class FakeClock:
    """Stands still until it is told to go on."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        """Tell the time."""
        return self.now_s

    def advance(self, seconds: float) -> None:
        """Go on."""
        self.now_s += seconds


@dataclass
class ScriptedSide:
    """Answers as `reply` says, and remembers what it was asked."""

    name: str
    reply: Callable[[Question], TimedAnswer]
    asked: list[Question] = field(default_factory=list)
    warmed_up: list[Question] = field(default_factory=list)

    @property
    def label(self) -> str:
        """The name again."""
        return f"side {self.name}"

    def warm_up(self, question: Question) -> None:
        """Note it."""
        self.warmed_up.append(question)

    def answer(self, question: Question) -> TimedAnswer:
        """Note the question and reply."""
        self.asked.append(question)
        return self.reply(question)


def make_prompt(number: int = 0, task: str = "code", **fields: Any) -> BenchPrompt:
    """Return a prompt that differs from those of other numbers."""
    text = f"{task} prompt {number}"
    message = {"role": "user", "content": text}
    return BenchPrompt((message,), task, f"{task}:{number}", text, **fields)


def make_answer(
    num_tokens: int = 11, ttft_s: float = 0.1, decode_s: float = 1.0, **fields: Any
) -> TimedAnswer:
    """Return an answer with these times; its tokens are 0, 1, 2, … unless said otherwise."""
    fields.setdefault("token_ids", tuple(range(num_tokens)))
    fields.setdefault("text", "word " * num_tokens)
    fields |= {"num_pieces": num_tokens, "gap_p50_s": 0.1, "gap_p95_s": 0.2}
    return TimedAnswer(num_tokens, ttft_s, ttft_s + decode_s, **fields)


def make_run(
    side: str, question: Question, answer: TimedAnswer | None, error: str | None = None
) -> Run:
    """Return a run."""
    return Run(side, question, 0, answer, error)


def make_question(prompt: BenchPrompt, temperature: float = 0.0, run: int = 0) -> Question:
    """Return a question about a prompt."""
    return Question(prompt, temperature, 32, run, run)


def make_pairs(
    speedups: Mapping[str, Sequence[float]], temperature: float = 0.0, base_s: float = 1.0
) -> list[Row]:
    """Return rows of sides "off" and "auto": per task one prompt for every speed-up given."""
    rows = []
    for task, values in speedups.items():
        for number, value in enumerate(values):
            question = make_question(make_prompt(number, task), temperature)
            slow = make_answer(ttft_s=0.1 * base_s, decode_s=0.9 * base_s)
            fast = make_answer(
                ttft_s=0.1 * base_s / value,
                decode_s=0.9 * base_s / value,
                acceptance=DecodeStats(10, 30, 15, accepted_at_depth=[8, 5, 2]),
                prefill_s=0.09,
                prefill_head_s=0.01,
            )
            rows.append(make_row(make_run("off", question, slow)))
            rows.append(make_row(make_run("auto", question, fast)))
    return rows


def make_document(rows: Sequence[Row], **changes: Any) -> dict[str, Any]:
    """Return the document of some rows."""
    hashes = {row.prompt_hash for row in rows}
    parts: dict[str, Any] = {
        "wording": Wording.MTP,
        "sides": {"off": "MTP off", "auto": "MTP auto"},
        "prompts": {"source": "made up", "num": len(hashes), "hash": "0123", "skipped": []},
        "settings": {"max_tokens": [32], "temperatures": [0.0], "num_runs": 1, "seed": 0},
        "setup": {"model": "tiny.gguf"},
        "conditions": {"cpu": "some cpu", "num_cores": 2, "measured_at": "2026-01-01T00:00:00"},
        "token_counter": "hand",
        "num_planned": len(rows) // 2,
    }
    return summarise(rows, BenchContext(**parts | changes))


def make_prompt_set(*prompts: BenchPrompt) -> PromptSet:
    """Return some prompts as a set."""
    return PromptSet(prompts, "made up")


def refuse(question: Question) -> TimedAnswer:
    """Fail as a server would."""
    raise HeadlongError(f"No answer to {question.prompt.name}.", "Try again.")
