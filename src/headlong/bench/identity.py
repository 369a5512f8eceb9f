"""Whether two sides said the same, and where they first did not.

In:  runs with their texts and, where known, token ids. Out: the first difference, for people.
In one process every difference is a bug of ours; between two servers it may be rounding.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headlong.bench.measure import Answer, Run

_SHOWN = 40
"""Characters of each text that are shown from where they part."""


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

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)

    @property
    def words(self) -> str:
        """Say it in a sentence."""
        return (
            f"{self.prompt} at temperature {self.temperature:g}: {self.candidate} parts from the "
            f"baseline at {self.unit} {self.position}: {self.baseline_text!r} became "
            f"{self.candidate_text!r}."
        )


def find_divergence(runs: Sequence[Run], baseline: str) -> Divergence | None:
    """Return the first difference among all runs; None when all said the same."""
    plain = {
        (run.question.prompt.hash, run.question.temperature, run.question.run): run.answer
        for run in runs
        if run.side == baseline
    }
    for run in runs:
        question = run.question
        truth = plain.get((question.prompt.hash, question.temperature, question.run))
        if run.side == baseline or truth is None or run.answer is None:
            continue
        found = _first_difference(truth, run.answer)
        if found is not None:
            position, unit = found
            start = _common_length(truth.text, run.answer.text)
            return Divergence(
                question.prompt.name,
                question.temperature,
                run.side,
                position,
                unit,
                truth.text[start : start + _SHOWN],
                run.answer.text[start : start + _SHOWN],
            )
    return None


def _first_difference(truth: Answer, other: Answer) -> tuple[int, str] | None:
    if truth.token_ids is not None and other.token_ids is not None:
        if truth.token_ids == other.token_ids:
            return None
        return _common_length(truth.token_ids, other.token_ids) + 1, "token"
    if truth.text == other.text:
        return None
    return _common_length(truth.text, other.text) + 1, "character"


def _common_length(one: Sequence[Any], other: Sequence[Any]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
