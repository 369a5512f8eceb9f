"""What a probe examines: two engines, some questions, and who is to blame for what goes wrong.

In:  both sides and the model's tokenizer. Out: requests for the checks, and judgements of problems
that the drafting side has and the plain one has not.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from headlong.config import SamplingParams, StopParams
from headlong.decode.request import Request
from headlong.fleet.dialect import Delta
from headlong.fleet.probe_sides import NotChecked, NotSettled, PlainFailed, Side, WrongAnswer
from headlong.fleet.verdict import Aspect, Judgement, Outcome
from headlong.text.tokenizer import Tokenizer

MAX_TOKENS = 48
"""Of one answer: many rounds of drafts."""


FindProblem = Callable[[Side], Awaitable[str | None]]
"""Returns what is wrong with a side, in a whole sentence; None where all is well."""


@dataclass(slots=True)
class Question:
    """One prompt and what became of it."""

    name: str
    prompt_ids: tuple[int, ...]
    answer: Delta | None = None
    """What the engine with drafts says to it, greedily."""


@dataclass(slots=True)
class Examined:
    """The two engines and what they are asked."""

    drafting: Side
    plain: Side | None
    """None where there is no plain engine to compare with."""
    tokenizer: Tokenizer
    questions: list[Question]

    @property
    def judge(self) -> Side:
        """The plain side; needed by whatever compares."""
        if self.plain is None:
            raise NotChecked("There is no plain engine of this model to compare with.")
        return self.plain

    def request(self, question: Question, **sampling: Any) -> Request:
        """Return a question as a request, greedy unless it is told otherwise."""
        params, stopping = SamplingParams(**sampling), StopParams(max_tokens=MAX_TOKENS)
        eos_ids = self.tokenizer.eos_ids
        return Request(question.prompt_ids, params, stopping, eos_ids=eos_ids)

    def longest(self) -> tuple[Question, tuple[int, ...]]:
        """Return the question with the longest greedy answer, and that answer."""
        answers = [(one, one.answer.token_ids) for one in self.questions if one.answer is not None]
        if not answers:
            raise NotSettled("No question was answered.")
        return max(answers, key=lambda pair: len(pair[1]))


async def blame(
    examined: Examined,
    aspect: Aspect,
    seen: str,
    find_problem: FindProblem,
) -> Judgement:
    """Judge by a problem of the drafting side that the plain one does not have."""
    try:
        problem = await find_problem(examined.drafting)
    except WrongAnswer as wrong:
        problem = str(wrong)
    if problem is None:
        return Judgement(aspect, Outcome.PASSED, seen)
    also = await _excuse(examined, find_problem)
    if also is not None:
        return Judgement(aspect, Outcome.NOT_CHECKED, f"Without drafts it is as bad: {also}")
    return Judgement(aspect, Outcome.FAILED, problem)


async def _excuse(examined: Examined, find_problem: FindProblem) -> str | None:
    """Return the same problem of the plain side; None where it has none, or nobody knows."""
    try:
        return None if examined.plain is None else await find_problem(examined.plain)
    except PlainFailed as failure:
        return str(failure)
    except NotChecked:
        return None
