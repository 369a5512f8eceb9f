"""The two sides of a probe: the engine that drafts, and a plain one that judges what it says.

In:  requests. Out: answers, or why there is none: `NotChecked` where an engine lacks what it takes,
`NotSettled` where time, load or the plain side are to blame, `WrongAnswer` where the drafting side
is. Also scores: how likely the plain side finds each token of any answer. A probe is a guest: few
requests at a time, bounded tokens and time.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from headlong.config import MAX_TOP_LOGPROBS, SamplingParams, StopParams
from headlong.decode.logprobs import TokenLogprob
from headlong.decode.request import Request
from headlong.errors import BusyError, HeadlongError
from headlong.fleet.answer_check import check_whole
from headlong.fleet.dialect import Delta, Feature
from headlong.fleet.exchange import UnreachableError

T = TypeVar("T")

AT_ONCE = 4
"""Requests that a side gets at one time."""


_STRIDE = 4
"""Of tokens that are scored by a request each, every so many."""


class NotChecked(Exception):
    """Nothing can be said, for this reason."""


class NotSettled(NotChecked):
    """Nothing can be said yet: another probe may."""


class PlainFailed(NotSettled):
    """The plain side could not answer, though it has what that takes."""


class WrongAnswer(Exception):
    """The side with drafts did what no engine should, in a whole sentence."""


@dataclass(slots=True)
class Budget:
    """What a probe may still take."""

    seconds: float = 300.0
    num_tokens: int = 30_000
    """Tokens that are written or scored, both sides together."""
    num_taken: int = 0
    began_s: float = field(default_factory=time.monotonic)

    @property
    def seconds_left(self) -> float:
        """How long requests may still take."""
        return self.seconds - (time.monotonic() - self.began_s)

    def take(self, num: int) -> None:
        """Take tokens, or refuse: the time or the tokens have run out."""
        if self.seconds_left <= 0:
            raise NotSettled(f"The {self.seconds:g} s of the probe had passed.")
        if self.num_taken + num > self.num_tokens:
            raise NotSettled(f"The {self.num_tokens:,} tokens of the probe were used up.")
        self.num_taken += num


Ask = Callable[[Request], Awaitable[Delta]]
"""Runs a request to its end, once; tells what the engine sent, unchecked."""


@dataclass(slots=True)
class Side:
    """One of the two engines."""

    ask_engine: Ask
    missing: Callable[[Request], Feature | None]
    """What a request needs and the engine lacks."""
    budget: Budget
    vocab_size: int
    is_plain: bool
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    @property
    def name(self) -> str:
        """How judgements call it."""
        return "the plain engine" if self.is_plain else "the engine with drafts"

    async def ask(self, request: Request, *, as_sent: bool = False) -> Delta:
        """Return the whole answer to a request, cut and checked as clients get it, or as sent."""
        request = replace(request, mtp="off" if self.is_plain else "auto")
        self.require(request)
        async with self._turns:
            self.budget.take(request.stopping.max_tokens)
            try:
                async with asyncio.timeout(self.budget.seconds_left):
                    sent = await self.ask_engine(request)
                return sent if as_sent else check_whole(request, sent, self.vocab_size)
            except TimeoutError:
                raise NotSettled(f"The time ran out while {self.name} was answering.") from None
            except BusyError as error:
                raise NotSettled(f"Too much to do: {error.problem}") from None
            except HeadlongError as error:
                if self.is_plain and isinstance(error, UnreachableError):
                    raise NotSettled(f"The plain engine is gone: {error.problem}") from None
                if self.is_plain:
                    raise PlainFailed(f"The plain engine failed: {error.problem}") from None
                raise WrongAnswer(error.problem) from None

    def require(self, request: Request) -> None:
        """Refuse what the engine cannot do."""
        lacking = self.missing(request)
        if lacking is not None:
            while_drafting = "" if self.is_plain else " while it drafts"
            raise NotChecked(f"The engine has no {lacking}{while_drafting}.")

    async def score(
        self, prompt_ids: tuple[int, ...], answer_ids: Sequence[int], *, may_skip: bool = False
    ) -> list[TokenLogprob]:
        """Return how likely the engine finds each token of somebody's answer.

        One that cannot score prompts is asked token by token; if it may, it skips most of them.
        """
        whole = (*prompt_ids, *answer_ids)
        one_token = StopParams(max_tokens=1)
        at_once = Request(whole, stopping=one_token, prompt_logprobs=MAX_TOP_LOGPROBS)
        if self.missing(at_once) is None:
            self.budget.take(len(answer_ids))
            told = (await self.ask(at_once)).prompt_logprobs or {}
            places = range(len(prompt_ids), len(whole))
            if not all(place in told for place in places):
                raise NotChecked(f"Scores of some tokens are missing from {self.name}.")
            return [told[place] for place in places]
        sampling = SamplingParams(logprobs=MAX_TOP_LOGPROBS)
        ends = range(len(prompt_ids), len(whole), _STRIDE if may_skip else 1)
        requests = [Request(whole[:end], sampling, one_token) for end in ends]
        answers = await together(self._try(request, may_fail=may_skip) for request in requests)
        pairs = zip(answers, [whole[end] for end in ends], strict=True)
        scored = [_scored(answer, token_id) for answer, token_id in pairs if answer is not None]
        if 2 * len(scored) < len(requests):
            raise PlainFailed("The plain engine could not score most tokens.")
        return scored

    async def _try(self, request: Request, *, may_fail: bool) -> Delta | None:
        """Return an answer; None where the engine fails and may."""
        try:
            return await self.ask(request)
        except PlainFailed:
            if not may_fail:
                raise
            return None


def _scored(answer: Delta, token_id: int) -> TokenLogprob:
    """Return another token's score at the place of an answer's first one.

    Beyond the alternatives it is at most as likely as the last of them.
    """
    if not answer.logprobs or not answer.logprobs[0].top:
        raise NotChecked("The plain engine told no alternatives.")
    top = answer.logprobs[0].top
    known = {one.token_id: one.logprob for one in top}
    return TokenLogprob(token_id, known.get(token_id, top[-1].logprob), top)


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines side by side; the first that fails ends the others."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
