"""Rows: runs with one token counter, flattened for CSV and JSON, and compared text by text.

In:  runs, or the rows of a results file. Out: `Row`, and the first place where two sides differ.
Texts stay out of rows: prompts and answers may be private, and their hashes are enough to tell
whether two are the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from headlong.bench.measure import Key, Run
from headlong.decode.divergence import find_divergence
from headlong.decode.stats import DecodeStats
from headlong.errors import RequestError

BY_ENGINE = "the engine's own tokens, the same for all sides"
BY_USAGE = "`usage` of the servers' answers"
BY_TOKENIZER = "the answers' texts, through one tokenizer"
BY_PIECES = "streamed pieces, since not every answer came with `usage`"
_SHOWN = 40
"""Characters of each text that are shown from where they part."""


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
    accepted_at_depth: list[int] | None = None
    finish_reason: str | None = None
    num_retries: int = 0
    text_hash: str | None = None
    tokens_hash: str | None = None

    @property
    def key(self) -> Key:
        """What pairs this row with the other sides' rows."""
        return self.prompt_hash, self.temperature, self.run

    @property
    def acceptance(self) -> DecodeStats | None:
        """The counters of drafts, where they are known."""
        if self.rounds is None:
            return None
        drafted, accepted = self.num_drafted or 0, self.num_accepted or 0
        depths = self.accepted_at_depth or []
        return DecodeStats(self.rounds, drafted, accepted, accepted_at_depth=depths)

    def says_the_same(self, other: "Row") -> bool:
        """Tell whether two answers are the same: by tokens where both know them, else by text."""
        if self.tokens_hash is not None and other.tokens_hash is not None:
            return self.tokens_hash == other.tokens_hash
        return self.text_hash == other.text_hash

    def to_dict(self) -> dict[str, Any]:
        """Return the row for JSON."""
        return asdict(self)

    def to_cells(self) -> dict[str, str]:
        """Return the row for CSV: unknown numbers are empty, depths are joined with spaces."""
        return {name: _cell(value) for name, value in self.to_dict().items()}


COLUMNS = tuple(column.name for column in fields(Row))


def make_row(run: Run) -> Row:
    """Flatten a run."""
    prompt, answer = run.question.prompt, run.answer
    named: dict[str, Any] = {"task": prompt.task, "prompt": prompt.name, "prompt_hash": prompt.hash}
    parts: list[Any] = [run, run.question]
    if answer is not None:
        parts += [answer, answer.acceptance]
    for part in parts:
        own = [name for name in COLUMNS if name not in named and hasattr(part, name)]
        named |= {name: getattr(part, name) for name in own}
    return Row(**named)


def read_row(record: Any, where: str) -> Row:
    """Read a row of a results file back."""
    try:
        row = Row(**{name: record[name] for name in COLUMNS if name in record})
        # A number that is none would only be noticed in the middle of the arithmetic.
        is_sound = row.num_tokens >= 0 and row.total_s >= 0 and row.temperature >= 0
    except (TypeError, KeyError) as error:
        problem = f"{where} holds a run that cannot be read: {error}."
        raise RequestError(problem, "Give a results.json as headlong bench wrote it.") from error
    if not is_sound:
        raise RequestError(f"{where} holds a run with negative numbers.", "Measure again.")
    return row


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def settle_tokens(
    runs: Sequence[Run], count: Callable[[str], int] | None = None
) -> tuple[list[Run], str]:
    """Return the runs with tokens counted one way; `count` counts the tokens of a text."""
    answers = [run.answer for run in runs if run.answer is not None]
    if count is not None:
        return [_recounted(run, count) for run in runs], BY_TOKENIZER
    if all(answer.token_ids is not None for answer in answers):
        return list(runs), BY_ENGINE
    if all(answer.is_counted_by_server for answer in answers):
        return list(runs), BY_USAGE
    return [_recounted(run, None) for run in runs], BY_PIECES


def _recounted(run: Run, count: Callable[[str], int] | None) -> Run:
    if run.answer is None:
        return run
    num_tokens = run.answer.num_pieces if count is None else count(run.answer.text)
    return replace(run, answer=replace(run.answer, num_tokens=max(1, num_tokens)))


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first place where two answers to one question part."""

    prompt: str
    temperature: float
    candidate: str
    position: int
    """From 1."""
    unit: str
    """What is counted: "token" or "character"."""
    baseline_text: str
    candidate_text: str

    @property
    def words(self) -> str:
        """Say it in a sentence."""
        return (
            f"{self.prompt} at temperature {self.temperature:g}: {self.candidate} parts from the "
            f"baseline at {self.unit} {self.position}: {self.baseline_text!r} became "
            f"{self.candidate_text!r}."
        )


def first_divergence(runs: Sequence[Run], baseline: str) -> Divergence | None:
    """Return the first difference among all runs; None when all said the same."""
    plain = {run.question.key: run.answer for run in runs if run.side == baseline}
    for run in runs:
        question = run.question
        truth = plain.get(question.key)
        if run.side == baseline or truth is None or run.answer is None:
            continue
        start, unit = find_divergence(truth.text, run.answer.text), "character"
        place = start
        if truth.token_ids is not None and run.answer.token_ids is not None:
            place, unit = find_divergence(truth.token_ids, run.answer.token_ids), "token"
        if place is not None:
            start = start or 0
            texts = (one.text[start : start + _SHOWN] for one in (truth, run.answer))
            asked = (question.prompt.name, question.temperature, run.side)
            return Divergence(*asked, place + 1, unit, *texts)
    return None
