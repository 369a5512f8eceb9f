"""The server's life cycle: bind, run, drain, exit.

In:  an app whose `state` holds `worker` and `in_flight`, and where to listen.
Out: an exit code. SIGTERM and SIGINT drain: new work gets 503, `/health` too, running requests may
     end within `drain_timeout_s`, what is left is ended with an answer; then the code is 0. A
     second signal leaves at once.
"""

import asyncio
import contextlib
import errno
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from headlong.errors import AddressError
from headlong.server.http_protocol import TimedHttpProtocol
from headlong.server.rate_limits import InFlight
from headlong.server.settings import ServerSettings
from headlong.server.worker import EngineWorker

_LAST_ANSWERS_S = 3.0
"""Time for answers that were cut to reach their clients, however slowly these read."""

_log = logging.getLogger("headlong.serving")


def bind(settings: ServerSettings) -> socket.socket:
    """Take the address before anything slow happens; clients can connect from `run_server` on."""
    host, port = settings.host, settings.port
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise AddressError(
            f"The host {host!r} is not known: {error.strerror}.",
            "Give an address of this machine, 127.0.0.1 or 0.0.0.0 for all.",
        ) from error
    # A name may have several addresses; clients of "localhost" expect the old kind first.
    family, kind, protocol, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    listener = socket.socket(family, kind, protocol)
    if os.name == "posix":
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _address_error(error, host, port) from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the address a client on this machine can use."""
    host, port = listener.getsockname()[:2]
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{name}:{port}"


def run_server(
    app: FastAPI,
    listener: socket.socket,
    settings: ServerSettings,
    on_ready: Callable[[], None] = lambda: None,
) -> int:
    """Serve until a signal ends it; `on_ready` is called once clients can be answered."""
    protocol: Any = partial(TimedHttpProtocol, settings.body_timeout_s)
    config = uvicorn.Config(
        app,
        http=protocol,
        log_config=None,  # `set_up_logs` has done it
        access_log=False,  # the middleware writes one line per request
        server_header=False,
        lifespan="on",
        ws="none",
        root_path=settings.root_path,
        timeout_graceful_shutdown=int(_LAST_ANSWERS_S),
    )
    server = _DrainingServer(config, app, settings, on_ready)
    asyncio.run(server.serve(sockets=[listener]))
    return 0 if server.started else 1


class _DrainingServer(uvicorn.Server):
    """Uvicorn, which lets requests end before it goes."""

    def __init__(
        self,
        config: uvicorn.Config,
        app: FastAPI,
        settings: ServerSettings,
        on_ready: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._app = app
        self._settings = settings
        self._on_ready = on_ready
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None
        self._has_been_told = False

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take SIGTERM and SIGINT while serving; raise neither again afterwards."""
        self._loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in signals}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen and say so."""
        try:
            await super().startup(sockets)
        except OSError as error:  # another program was faster since `bind`
            raise _address_error(error, self._settings.host, self._settings.port) from error
        if self.started:
            # What was loaded stays; checking it for garbage would stop all streams for 30 ms.
            gc.collect()
            gc.freeze()
            self._on_ready()
            _tell_systemd("READY=1")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain; asked again, leave at once."""
        if self._has_been_told:
            sys.stderr.write("Leaving at once.\n")
            sys.stderr.flush()
            os._exit(128 + sig)
        self._has_been_told = True
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._begin_drain)

    def _begin_drain(self) -> None:
        if not self.started:
            self.should_exit = True
            return
        self._draining = asyncio.ensure_future(self._drain())

    async def _drain(self) -> None:
        """Let running requests end, cut the others, then close."""
        worker: EngineWorker = self._app.state.worker
        in_flight: InFlight = self._app.state.in_flight
        timeout_s = self._settings.drain_timeout_s
        in_flight.is_draining = True
        _tell_systemd("STOPPING=1")
        _log.info(
            "Shutting down: running requests (%d) may end within %g s; a second signal leaves at "
            "once.",
            in_flight.num,
            timeout_s,
        )
        try:
            num_cut = await worker.drain(timeout_s)
            if num_cut:
                _log.warning("Requests that took longer were cut: %d.", num_cut)
            await in_flight.wait_idle(_LAST_ANSWERS_S)
        finally:
            self.should_exit = True


def _tell_systemd(state: str) -> None:
    """Say how far we are to a systemd that waits for it (Type=notify)."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        # A name that begins with @ stands for one outside the file system.
        channel.connect(f"\0{address[1:]}" if address.startswith("@") else address)
        channel.sendall(state.encode())


def _address_error(error: OSError, host: str, port: int) -> AddressError:
    """Say why the server cannot listen."""
    place = f"Port {port} of {host}"
    if error.errno == errno.EADDRINUSE:
        return AddressError(
            f"{place} is in use by another program.",
            f"Stop that one, or take another port: --port {port + 1}, or --port 0 for a free one.",
        )
    if isinstance(error, PermissionError):
        return AddressError(
            f"{place} may not be used: {error.strerror}.", "Take a port of 1024 or more."
        )
    return AddressError(
        f"{place} cannot be listened on: {error.strerror}.",
        "Give an address of this machine, 127.0.0.1 or 0.0.0.0 for all.",
    )
