"""Probing: every replica that drafts is examined before it gets requests, and again and again.

In:  the replicas of one fleet. Out: `Replica.verdict`, and lines in the log that nobody overlooks.
A replica that comes back from being down has lost its verdict and is examined anew. A verdict with
a failure is looked at again sooner than others: it costs speed until it is gone. A replica with
known faults gets no other requests meanwhile: what the probe asks could spoil their answers.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from headlong.fleet.answer_check import AnswerAsSent
from headlong.fleet.exchange import Exchanger
from headlong.fleet.probe import Tell, probe
from headlong.fleet.probe_sides import Budget, Side
from headlong.fleet.replica import Replica, ReplicaState
from headlong.fleet.verdict import Aspect, Judgement, Outcome, Verdict
from headlong.text.tokenizer import Tokenizer

FIRST_AGAIN_S = 60.0
"""When a verdict with a failure is looked at again; every time it stands, twice as late."""

JUDGE_WAIT_S = 60.0
"""How long a replica waits for one without drafts to be compared with."""

_LOOK_S = 0.2

_log = logging.getLogger("headlong.fleet")


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """How often replicas are examined, and what that may take."""

    every_s: float | None = 3600.0
    """None examines none: all are trusted."""
    seconds: float = 300.0
    num_tokens: int = 30_000


class Probing:
    """Examines the replicas of one fleet."""

    def __init__(
        self,
        replicas: Sequence[Replica],
        exchanger: Exchanger,
        tokenizer: Tokenizer,
        options: ProbeOptions | None = None,
    ) -> None:
        """Examine `replicas` through `exchanger`, with prompts in the words of `tokenizer`."""
        self._replicas = replicas
        self._exchanger = replace(exchanger, follow=AnswerAsSent)
        self._tokenizer = tokenizer
        self._options = options or ProbeOptions()

    async def watch(self, replica: Replica) -> None:
        """Examine a replica that drafts whenever it is due, until cancelled."""
        every_s = self._options.every_s
        due_s, again_s = 0.0, FIRST_AGAIN_S
        while True:
            is_due = replica.verdict is None or time.monotonic() >= due_s
            if _is_up(replica) and is_due and self._can_be_spared(replica):
                verdict = _unprobed() if every_s is None else await self.examine(replica)
                replica.verdict = replica.verdict or verdict
                if every_s is None or (verdict is not None and self._is_clear(verdict)):
                    wait_s, again_s = every_s or math.inf, FIRST_AGAIN_S
                else:
                    wait_s, again_s = min(again_s, every_s), 2 * again_s
                due_s = time.monotonic() + wait_s
            await asyncio.sleep(_LOOK_S)

    async def examine(self, replica: Replica, tell: Tell = lambda one: None) -> Verdict | None:
        """Examine a replica now, telling judgements as they come; None where it goes down."""
        judge = await self._find_judge()
        _log.info("The replica %s is being probed.", replica.name)
        if _has_faults(replica):
            return await self._examine_alone(replica, judge, tell)
        return await self._examine(replica, judge, tell)

    async def _examine_alone(
        self, replica: Replica, judge: Replica | None, tell: Tell
    ) -> Verdict | None:
        """Examine a replica while it gets no requests; end early where it is needed for them."""
        is_needed, replica.is_isolated = replica.is_usable, True
        work = asyncio.ensure_future(self._examine(replica, judge, tell))
        try:
            while not work.done() and (self._has_stand_in(replica) or not is_needed):
                await asyncio.wait([work], timeout=_LOOK_S)
            return work.result() if work.done() else None
        finally:
            work.cancel()
            await asyncio.wait([work])
            replica.is_isolated = False

    async def _examine(self, replica: Replica, judge: Replica | None, tell: Tell) -> Verdict | None:
        while replica.is_isolated and replica.num_in_flight and _is_up(replica):
            await asyncio.sleep(_LOOK_S)
        before = replica.verdict
        budget = Budget(self._options.seconds, self._options.num_tokens)
        plain = None if judge is None else self._side(judge, budget, is_plain=True)
        drafting = self._side(replica, budget, is_plain=False)
        verdict = (await probe(drafting, plain, self._tokenizer, tell)).completed_by(before)
        if not _is_up(replica) or replica.verdict is not before:
            return None
        replica.verdict = verdict
        _log_verdict(replica, verdict, before)
        return verdict

    def _can_be_spared(self, replica: Replica) -> bool:
        """Tell whether nobody needs it, or others can take requests while it gets none."""
        is_needed = _has_faults(replica) and replica.is_usable
        return not is_needed or self._has_stand_in(replica)

    def _has_stand_in(self, replica: Replica) -> bool:
        """Tell whether another replica takes requests."""
        return any(one.is_usable for one in self._replicas if one is not replica)

    def _is_clear(self, verdict: Verdict) -> bool:
        """Tell whether nothing speaks for looking again soon."""
        has_plain = any(not one.drafts for one in self._replicas)
        was_compared = all(
            one.outcome is not Outcome.NOT_CHECKED
            for one in verdict.judgements
            if one.aspect is Aspect.GREEDY
        )
        return not verdict.refused and (was_compared or not has_plain)

    def _side(self, replica: Replica, budget: Budget, *, is_plain: bool) -> Side:
        exchanger = self._exchanger
        return Side(
            lambda request: exchanger.ask(replica, request),
            replica.missing,
            budget,
            exchanger.vocab_size,
            is_plain,
        )

    async def _find_judge(self) -> Replica | None:
        """Return a replica without drafts to compare with; None where there is none."""
        plain = [one for one in self._replicas if not one.drafts]
        if not plain:
            return None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(JUDGE_WAIT_S):
                while not any(map(_is_up, plain)):
                    await asyncio.sleep(_LOOK_S)
        able = [one for one in plain if _is_up(one)]
        return min(able, key=lambda one: one.num_in_flight, default=None)


def _is_up(replica: Replica) -> bool:
    return replica.state in (ReplicaState.UP, ReplicaState.SUSPECT)


def _has_faults(replica: Replica) -> bool:
    return replica.verdict is not None and bool(replica.verdict.refused)


def _unprobed() -> Verdict:
    """Return the verdict on a replica that nobody examines."""
    seen = "The probe is turned off."
    judgements = [Judgement(aspect, Outcome.NOT_CHECKED, seen) for aspect in Aspect]
    return Verdict(time.time(), tuple(judgements))


def _log_verdict(replica: Replica, verdict: Verdict, before: Verdict | None) -> None:
    """Write a verdict into the log, loudly where something does not hold."""
    for one in verdict.failed:
        _log.error(
            "The replica %s failed the probe: %s. %s %s",
            replica.name,
            one.aspect,
            one.seen,
            "It gets no such requests." if verdict.problem is None else "It gets no requests.",
        )
    if open_ones := [one for one in verdict.refused if one.outcome is Outcome.NOT_SETTLED]:
        _log.warning(
            "The replica %s could not be probed to the end: %s. It gets no such requests until it "
            "is; probe_timeout_s and probe_tokens allow more.",
            replica.name,
            " ".join(f"{one.aspect}: {one.seen}" for one in open_ones).rstrip("."),
        )
    for one in verdict.judgements:
        if one.outcome in (Outcome.NOT_EXACT, Outcome.NOT_CHECKED):
            _log.info("The replica %s, %s: %s. %s", replica.name, one.aspect, one.outcome, one.seen)
    if before is not None and before.failed and not verdict.failed:
        _log.warning("The replica %s passes the probe again.", replica.name)
    of_outcome = {
        outcome: ", ".join(one.aspect for one in verdict.judgements if one.outcome is outcome)
        for outcome in Outcome
    }
    words = "; ".join(f"{outcome}: {names}" for outcome, names in of_outcome.items() if names)
    _log.info(
        "The replica %s was probed in %.0f s with %d tokens. %s.",
        replica.name,
        verdict.seconds,
        verdict.num_tokens,
        words[:1].upper() + words[1:],
    )
