"""A run as one flat row: what goes into CSV and JSON, and comes back for comparing later.

In:  runs, or the rows of a results file. Out: `Row`. Texts stay out of it: prompts and answers may
be private, and their hashes are enough to tell whether two are the same.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeAlias

from headlong.bench.measure import Acceptance, Answer, Run
from headlong.errors import RequestError

Key: TypeAlias = tuple[str, float, int]
"""What was asked: prompt hash, temperature, number of the run."""


@dataclass(frozen=True, slots=True)
class Row:
    """One question put to one side; numbers are None where they are not known."""

    side: str
    task: str
    prompt: str
    prompt_hash: str
    temperature: float
    max_tokens: int
    run: int
    seed: int
    place: int
    error: str | None = None
    num_tokens: int = 0
    ttft_s: float = 0.0
    total_s: float = 0.0
    gap_p50_s: float | None = None
    gap_p95_s: float | None = None
    num_pieces: int = 0
    num_prompt_tokens: int | None = None
    num_cached_tokens: int | None = None
    prefill_s: float | None = None
    prefill_head_s: float | None = None
    rounds: int | None = None
    num_drafted: int | None = None
    num_accepted: int | None = None
    accepted_at_depth: tuple[int, ...] | None = None
    finish_reason: str | None = None
    num_retries: int = 0
    text_hash: str | None = None
    tokens_hash: str | None = None

    @property
    def key(self) -> Key:
        """What pairs this row with the other sides' rows."""
        return self.prompt_hash, self.temperature, self.run

    @property
    def acceptance(self) -> Acceptance | None:
        """The counters of drafts, where they are known."""
        if self.rounds is None:
            return None
        depths = tuple(self.accepted_at_depth or ())
        return Acceptance(self.rounds, self.num_drafted or 0, self.num_accepted or 0, depths)

    def says_the_same(self, other: "Row") -> bool:
        """Tell whether two answers are the same: by tokens where both know them, else by text."""
        if self.tokens_hash is not None and other.tokens_hash is not None:
            return self.tokens_hash == other.tokens_hash
        return self.text_hash == other.text_hash

    def to_dict(self) -> dict[str, Any]:
        """Return the row for JSON."""
        depths = self.accepted_at_depth
        return {**asdict(self), "accepted_at_depth": None if depths is None else list(depths)}

    def to_cells(self) -> dict[str, str]:
        """Return the row for CSV: unknown numbers are empty, depths are joined with spaces."""
        return {name: _cell(value) for name, value in self.to_dict().items()}


COLUMNS = tuple(column.name for column in fields(Row))


def make_row(run: Run) -> Row:
    """Flatten a run."""
    question, prompt = run.question, run.question.prompt
    row: dict[str, Any] = {
        "side": run.side,
        "task": prompt.task,
        "prompt": prompt.name,
        "prompt_hash": prompt.hash,
        "temperature": question.temperature,
        "max_tokens": question.max_tokens,
        "run": question.run,
        "seed": question.seed,
        "place": run.place,
        "error": run.error,
    }
    return Row(**row, **({} if run.answer is None else _numbers(run.answer)))


def read_row(record: Any, where: str) -> Row:
    """Read a row of a results file back."""
    try:
        known = {name: record[name] for name in COLUMNS if name in record}
        depths = known.get("accepted_at_depth")
        row = Row(**known | {"accepted_at_depth": None if depths is None else tuple(depths)})
        # A number that is none would only be noticed in the middle of the arithmetic.
        is_sound = row.num_tokens >= 0 and row.total_s >= 0 and row.temperature >= 0
    except (TypeError, KeyError) as error:
        problem = f"{where} holds a run that cannot be read: {error}."
        raise RequestError(problem, "Give a results.json as headlong bench wrote it.") from error
    if not is_sound:
        raise RequestError(f"{where} holds a run with negative numbers.", "Measure again.")
    return row


def _numbers(answer: Answer) -> Mapping[str, Any]:
    accepted = answer.acceptance
    counters = (
        {}
        if accepted is None
        else {
            "rounds": accepted.rounds,
            "num_drafted": accepted.num_drafted,
            "num_accepted": accepted.num_accepted,
            "accepted_at_depth": accepted.accepted_at_depth,
        }
    )
    names = ("num_tokens", "ttft_s", "total_s", "num_prompt_tokens", "num_cached_tokens")
    more = ("prefill_s", "prefill_head_s", "finish_reason", "num_retries", "text_hash")
    ids = answer.token_ids
    return {
        **{name: getattr(answer, name) for name in (*names, *more)},
        **asdict(answer.pace),
        **counters,
        "tokens_hash": None if ids is None else hashlib.sha256(repr(ids).encode()).hexdigest()[:16],
    }


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
