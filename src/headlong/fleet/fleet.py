"""The fleet: replicas, the client that runs requests on them, and the thread that watches them.

In:  replicas, and what is known of their model. Out: inside a `with` block, an `engine` that runs
requests. It begins once a replica can take some, and watches all of them until the block ends.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from headlong.engine.limits import EngineLimits
from headlong.errors import EngineDownError
from headlong.fleet.client import FleetEngine, FleetModel
from headlong.fleet.dispatch import Dispatcher
from headlong.fleet.exchange import Exchanger, Patience, make_http
from headlong.fleet.gain import Gains
from headlong.fleet.health import Health
from headlong.fleet.probing import ProbeOptions, Probing
from headlong.fleet.replica import Replica, ReplicaState
from headlong.fleet.routing import Router

_LOOK_S = 0.05
_TELL_S = 10.0

_log = logging.getLogger("headlong.fleet")


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """How a fleet is run."""

    model_name: str | None = None
    """What engines call their model; None where each has but one."""
    patience: Patience = field(default_factory=Patience)
    probe: ProbeOptions = field(default_factory=ProbeOptions)
    start_s: float = 600.0
    """How long to wait for a first replica."""


class Fleet:
    """Replicas and the client that runs requests on them."""

    def __init__(
        self,
        replicas: Sequence[Replica],
        model: FleetModel,
        limits: EngineLimits,
        options: FleetOptions | None = None,
    ) -> None:
        """Make a client for `replicas`; nothing is asked of them before the block begins."""
        self.replicas = tuple(replicas)
        self._options = options or FleetOptions()
        self._http = make_http()
        exchanger = Exchanger(self._http, model.vocab_size, self._options.patience)
        self._probing = Probing(self.replicas, exchanger, model.tokenizer, self._options.probe)
        self._health = Health(self.replicas, self._http, model.tokenizer, self._options.model_name)
        dispatcher = Dispatcher(Router(self.replicas, Gains()), self._health, exchanger)
        self._loop = asyncio.new_event_loop()
        self.engine = FleetEngine(model, dispatcher, limits, self._loop)
        self._thread = threading.Thread(target=self._run, name="headlong-fleet", daemon=True)
        self._ending = asyncio.Event()

    def __enter__(self) -> Self:
        """Begin to watch the replicas; return when one can take requests.

        Raises:
            EngineDownError: None could for too long.
        """
        self._thread.start()
        began_s = told_s = time.monotonic()
        while not self._is_ready():
            now_s = time.monotonic()
            if now_s - began_s > self._options.start_s:
                self.close()
                problem = f"No engine could take requests within {self._options.start_s:g} s."
                words = f"{problem} {self._obstacles()}"
                raise EngineDownError(words, "Start one, or check the addresses.")
            if now_s - told_s > _TELL_S:
                told_s = now_s
                seconds, words = now_s - began_s, self._obstacles()
                _log.info("Waiting for an engine since %.0f s. %s", seconds, words)
            time.sleep(_LOOK_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cut what still runs, and hang up."""
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join()

    def _obstacles(self) -> str:
        return " ".join(one.obstacle for one in self.replicas if one.obstacle is not None)

    def _is_ready(self) -> bool:
        """Tell whether a replica can take requests and none is still to be heard of."""
        unknown = [one for one in self.replicas if one.state is ReplicaState.STARTING]
        is_unheard = any(one.problem is None for one in unknown)
        return not is_unheard and any(one.is_usable for one in self.replicas)

    # From here on everything runs in the thread.

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._watch())

    async def _watch(self) -> None:
        """Watch the replicas until the end; then end whatever runs in the loop."""
        watches = [self._health.watch(one) for one in self.replicas]
        watches += [self._probing.watch(one) for one in self.replicas if one.drafts]
        for task in map(asyncio.create_task, watches):
            task.add_done_callback(_tell_of_a_bug)
        await self._ending.wait()
        while running := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in running:
                task.cancel()
            await asyncio.wait(running, timeout=_LOOK_S)  # libraries may swallow it: say it again
        await self._http.aclose()


def _tell_of_a_bug(task: asyncio.Task[None]) -> None:
    """Log what ended a task that never should end."""
    if not task.cancelled() and task.exception() is not None:
        _log.critical("A replica is not watched any more.", exc_info=task.exception())
