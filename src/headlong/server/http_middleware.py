"""The base of all middleware: plain ASGI for HTTP requests, so that streams pass unchanged."""

from starlette.types import ASGIApp, Receive, Scope, Send

from headlong.server.metrics import Metrics
from headlong.server.refusal import Refusal, send_refusal
from headlong.server.settings import ServerSettings


class HttpMiddleware:
    """Handles HTTP requests on their way to an app; other events pass."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: Metrics) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app, as ASGI has it."""
        handle = self._handle if scope["type"] == "http" else self._app
        await handle(scope, receive, send)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError

    async def _refuse(self, send: Send, refusal: Refusal, reason: str) -> None:
        """Answer with a refusal, counted by its reason."""
        self._metrics.refused(reason)
        await send_refusal(send, refusal)


def route_path(scope: Scope) -> str:
    """Return a request's path without the part a proxy adds in front."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "")) or "/"
