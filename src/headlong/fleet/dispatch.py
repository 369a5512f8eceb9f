"""Dispatch: one request on its way through the fleet, from replica to replica if it must.

In:  a request. Out: where it runs, then its deltas; or an error, told once.
A request that fails before its first token runs again elsewhere. One that has begun goes on
elsewhere only where every further token is determined by those that were given: picked greedily,
with nothing that counts tokens. All others are told. Nothing is ever given twice.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from headlong.config import SamplingParams
from headlong.decode.request import Request
from headlong.errors import BusyError, EngineDownError, EngineError, HeadlongError
from headlong.fleet.dialect import Delta
from headlong.fleet.exchange import Exchanger, UnreachableError
from headlong.fleet.gain import kind_of
from headlong.fleet.health import Health
from headlong.fleet.needs import is_greedy
from headlong.fleet.replica import Replica
from headlong.fleet.routing import Route, Router

PATIENCE_S = 30.0
"""How long a request waits for a replica that can take it."""

MAX_FAILURES = 3
"""A request that so many replicas failed on is not tried on more: it may be what breaks them."""

_LOOK_S = 0.05
"""How often a request that waits looks for a replica."""

_log = logging.getLogger("headlong.fleet")

Tell: TypeAlias = Callable[[Route | Delta], None]


@dataclass(slots=True)
class _Progress:
    """What one request has been through."""

    patience_ends_s: float
    """When it has waited for a replica long enough."""
    said: list[int] = field(default_factory=list)
    num_failures: int = 0
    refused_by: set[Replica] = field(default_factory=set)
    """Replicas that are not asked again at once."""
    error: HeadlongError | None = None
    """The last one."""


@dataclass(frozen=True, slots=True)
class Dispatcher:
    """Runs requests on replicas."""

    router: Router
    health: Health
    exchanger: Exchanger

    async def run(self, request: Request, tell: Tell) -> None:
        """Run a request to its end.

        Raises:
            HeadlongError: It cannot be answered, or not to its end.
        """
        progress = _Progress(patience_ends_s=_patience_end_s())
        while True:
            rest = _rest(request, progress.said)
            route = await self._find(rest, progress)
            tell(route)
            try:
                await self._try(rest, route, progress, tell)
                return
            except (BusyError, EngineError) as error:
                progress.error = error
                progress.refused_by.add(route.replica)
                if isinstance(error, EngineError):
                    self._note_failure(route.replica, error, progress)
                can_go_on = not progress.said or _is_determined(request, route.replica)
                if progress.num_failures >= MAX_FAILURES or not can_go_on:
                    raise
                if isinstance(error, EngineError):
                    name = route.replica.name
                    _log.warning("A request that failed on %s is run again. %s", name, error)

    def _note_failure(self, replica: Replica, error: EngineError, progress: _Progress) -> None:
        """Hold a failure against the replica, and against the request if the replica saw it."""
        self.health.observe_failure(replica, error)
        if not isinstance(error, UnreachableError):
            progress.num_failures += 1
            progress.patience_ends_s = _patience_end_s()

    async def _try(self, request: Request, route: Route, progress: _Progress, tell: Tell) -> None:
        """Run a request on one replica, and learn from how it went."""
        clock = asyncio.get_running_loop().time
        arrived_s, num_before = list[float](), len(progress.said)

        def receive(delta: Delta) -> None:
            progress.said += delta.token_ids
            arrived_s.append(clock())
            tell(delta)

        def learn() -> None:
            num_tokens = len(progress.said) - num_before - 1
            seconds = arrived_s[-1] - arrived_s[0] if arrived_s else 0.0
            if num_tokens > 0 and seconds > 0:
                kind = kind_of(request)
                self.router.gains.observe(kind, seconds, num_tokens, drafts=replica.drafts)

        replica = route.replica
        try:
            await self.exchanger.run(replica, request, receive)
        except asyncio.CancelledError:  # a stop string was found, or the client has left
            learn()
            raise
        self.health.observe_success(replica)
        learn()

    async def _find(self, request: Request, progress: _Progress) -> Route:
        """Return where to go; wait for it where no replica can take the request now."""
        while True:
            route = self.router.choose(request, random.random(), progress.refused_by)
            if route is not None:
                return route
            left_s = progress.patience_ends_s - asyncio.get_running_loop().time()
            if left_s <= 0:
                is_busy = isinstance(progress.error, BusyError)
                raise progress.error if progress.error and is_busy else self._nobody()
            error, progress.refused_by = progress.error, set()
            wait_s = error.retry_after_s if isinstance(error, BusyError) else 0.0
            await asyncio.sleep(min(max(wait_s, _LOOK_S), left_s))

    def _nobody(self) -> EngineDownError:
        problems = [one.obstacle for one in self.router.replicas if one.obstacle is not None]
        problem = "No engine behind this server can take the request now."
        return EngineDownError(" ".join([problem, *problems[:1]]), "Try again later.")


def _patience_end_s() -> float:
    return asyncio.get_running_loop().time() + PATIENCE_S


def _rest(request: Request, said: list[int]) -> Request:
    """Return what is left of a request of which some tokens were given."""
    if not said:
        return request
    num, sampling, stopping = len(said), request.sampling, request.stopping
    return replace(
        request,
        prompt_ids=(*request.prompt_ids, *said),
        sampling=replace(sampling, min_tokens=max(0, sampling.min_tokens - num)),
        stopping=replace(stopping, max_tokens=stopping.max_tokens - num),
    )


def _is_determined(request: Request, replica: Replica) -> bool:
    """Tell whether the tokens given so far alone determine how an answer goes on."""
    sampling, free = request.sampling, SamplingParams()
    counts = ("repetition_penalty", "presence_penalty", "frequency_penalty")
    return (
        is_greedy(request)
        and all(getattr(sampling, name) == getattr(free, name) for name in counts)
        and request.grammar is None
        and replica.knows_tokens
    )
