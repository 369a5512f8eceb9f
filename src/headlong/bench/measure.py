"""What is measured: questions, the sides that answer them, and one record per answer.

In:  nothing; these are the words in which the other files of this room talk.
Out: `Question`, `Answer`, `Run`, and `Side`, the protocol of whoever answers: this process with or
     without MTP, or a server behind a URL.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from typing import Any, Protocol

from headlong.bench.prompt_sets import BenchPrompt
from headlong.bench.statistics import percentile
from headlong.decode.stats import DecodeStats


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt as it is asked of every side: same temperature, seed and limit."""

    prompt: BenchPrompt
    temperature: float
    max_tokens: int
    run: int
    seed: int


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What became of drafts; the ratios are those of `decode/stats.py`."""

    rounds: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    accepted_at_depth: tuple[int, ...] = ()
    """Rounds in which the draft token at each depth stood."""

    @classmethod
    def of(cls, stats: DecodeStats) -> "Acceptance":
        """Take the counters of a finished answer."""
        return cls(
            stats.rounds, stats.num_drafted, stats.num_accepted, tuple(stats.accepted_at_depth)
        )

    @classmethod
    def total(cls, parts: Iterable["Acceptance"]) -> "Acceptance":
        """Add up the counters of many answers."""
        parts = list(parts)
        depths = zip_longest(*(part.accepted_at_depth for part in parts), fillvalue=0)
        return cls(
            sum(part.rounds for part in parts),
            sum(part.num_drafted for part in parts),
            sum(part.num_accepted for part in parts),
            tuple(sum(counts) for counts in depths),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return counters and ratios for JSON; acceptance length counts the next token."""
        stats = DecodeStats(
            rounds=self.rounds,
            num_drafted=self.num_drafted,
            num_accepted=self.num_accepted,
            accepted_at_depth=list(self.accepted_at_depth),
        )
        return {
            "rounds": self.rounds,
            "num_drafted": self.num_drafted,
            "num_accepted": self.num_accepted,
            "acceptance_length": stats.acceptance_length,
            "acceptance_rate": stats.acceptance_rate,
            "acceptance_at_depth": stats.acceptance_at_depth,
        }


@dataclass(frozen=True, slots=True)
class Pace:
    """How evenly an answer came, in seconds between one piece of it and the next."""

    num_pieces: int
    gap_p50_s: float | None
    gap_p95_s: float | None

    @classmethod
    def of(cls, times_s: Sequence[float]) -> "Pace":
        """Look at when the pieces came."""
        gaps = [later - earlier for earlier, later in pairwise(times_s)]
        if not gaps:
            return cls(len(times_s), None, None)
        return cls(len(times_s), percentile(gaps, 50), percentile(gaps, 95))


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of one side, timed from where the question was put."""

    num_tokens: int
    ttft_s: float
    """Until the first token was there."""
    total_s: float
    """Until the last token was there."""
    text: str
    token_ids: tuple[int, ...] | None = None
    """Unknown behind a URL; texts are compared then."""
    pace: Pace = field(default_factory=lambda: Pace(1, None, None))
    num_prompt_tokens: int | None = None
    num_cached_tokens: int | None = None
    """Prompt tokens that were remembered from an earlier question."""
    finish_reason: str | None = None
    acceptance: Acceptance | None = None
    prefill_s: float | None = None
    prefill_head_s: float | None = None
    is_counted_by_server: bool = False
    """Whether `num_tokens` is what a server says, not what we counted."""
    num_retries: int = 0
    """How often the server was busy before it took the question; not part of any time."""

    @property
    def text_hash(self) -> str:
        """The text in 16 letters: enough to see whether two are the same."""
        return hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Run:
    """One question put to one side: its answer, or why there is none."""

    side: str
    question: Question
    place: int
    """Which side answered first: 0, second: 1, …"""
    answer: Answer | None = None
    error: str | None = None


class Side(Protocol):
    """Whoever answers."""

    @property
    def name(self) -> str:
        """One word for tables and files: off, auto, 4, A, B."""

    @property
    def label(self) -> str:
        """What is measured, for people."""

    def warm_up(self, question: Question) -> None:
        """Answer a little of a question, untimed, so that the first answer is not the slowest."""

    def answer(self, question: Question) -> Answer:
        """Answer a question; refuse with a `HeadlongError`."""


@dataclass(frozen=True, slots=True)
class Measured:
    """All runs of a measurement, and what kept it from being whole."""

    runs: Sequence[Run]
    num_planned: int
    """Questions that were to be put."""
    stopped: str | None = None
    """Why it ended early, in words; None when it did not."""
