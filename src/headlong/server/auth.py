"""Access: API keys, the host a request is meant for, the origin of a browser's web page.

In:  HTTP requests on their way to the app. Out: the same, with `request.state.client` set to the
     `ApiKey` or None; or a refusal in OpenAI's form.
Keys are compared in constant time, all of them every time.
"""

import hashlib
import hmac
import socket
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from headlong.server.http_middleware import HttpMiddleware, route_path
from headlong.server.metrics import Metrics
from headlong.server.refusal import Refusal
from headlong.server.settings import ApiKey, ServerSettings, is_loopback_address

_NO_KEY = Refusal(
    401,
    "This server wants an API key. Send it as `Authorization: Bearer KEY` or as `x-api-key: KEY`.",
    "authentication_error",
    "missing_api_key",
)
_WRONG_KEY = Refusal(
    401,
    "The API key is not one of this server's. Check it, or ask the server's operator.",
    "authentication_error",
    "invalid_api_key",
)


class AuthMiddleware(HttpMiddleware):
    """Asks for a key where keys are set."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: Metrics) -> None:
        super().__init__(app, settings, metrics)
        self._digests = [(_digest(key.key), key) for key in settings.api_keys]

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = _given_key(Headers(scope=scope))
        client = self._find(given) if given is not None else None
        scope.setdefault("state", {})["client"] = client
        if client is None and self._digests and not self._is_open(scope):
            await self._refuse(send, _NO_KEY if given is None else _WRONG_KEY, "auth")
        else:
            await self._app(scope, receive, send)

    def _find(self, given: str) -> ApiKey | None:
        """Return the key's owner; takes the same time wherever and whether it is found."""
        digest, found = _digest(given), None
        for known, key in self._digests:
            if hmac.compare_digest(known, digest):
                found = key
        return found

    def _is_open(self, scope: Scope) -> bool:
        path = route_path(scope)
        if path == "/health":
            return True
        if path == "/metrics":
            return self._settings.open_metrics
        return self._settings.open_page and is_page(path)


def is_page(path: str) -> bool:
    """Tell whether a path belongs to the page itself, which holds nothing of anyone's."""
    return path in ("/", "/favicon.ico") or path.startswith("/page/")


class OriginMiddleware(HttpMiddleware):
    """Keeps strangers' web pages from using a server that has no keys.

    Any page in the user's browser can send requests to this machine. Without a key to ask for, a
    browser's request must come from our own page or from an origin that was allowed, and every
    request must be meant for this machine or an allowed host, wherever the server listens: a
    stranger's domain can be made to point here. A list of allowed hosts holds with keys as well.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: Metrics) -> None:
        super().__init__(app, settings, metrics)
        name = socket.gethostname().lower()
        label = name.partition(".")[0]
        self._hosts = {"localhost", settings.host.lower(), name, label, f"{label}.local"}
        self._hosts.update(host.lower() for host in settings.allowed_hosts)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        malformed = _check_form(headers)
        refusal = malformed or self._check_host(headers, scope) or self._check_origin(headers)
        if refusal is not None:
            await self._refuse(send, refusal, "malformed" if malformed else "origin")
        else:
            await self._app(scope, receive, send)

    def _check_host(self, headers: Headers, scope: Scope) -> Refusal | None:
        host, allowed = _host_name(headers.get("host", "")), self._settings.allowed_hosts
        if not host or "*" in allowed or (self._settings.api_keys and not allowed):
            return None
        # The address that this client reached: IPv4 may be written as IPv6, IPv6 with its device.
        server = (scope.get("server") or ("",))[0].removeprefix("::ffff:").partition("%")[0]
        if host in self._hosts or host == server or host.endswith(".localhost"):
            return None
        if is_loopback_address(host):
            return None
        return Refusal(
            403,
            f"This server answers to its machine's own names and addresses only, not to {host!r}. "
            f"Start it with --allowed-hosts {host}, or with API keys and no such list.",
            "permission_error",
            "host_not_allowed",
        )

    def _check_origin(self, headers: Headers) -> Refusal | None:
        origin, host = headers.get("origin"), headers.get("host", "").lower()
        allowed = self._settings.cors_origins
        if origin is None or self._settings.api_keys or "*" in allowed or origin in allowed:
            return None
        if host and origin.lower() in (f"http://{host}", f"https://{host}"):
            return None
        return Refusal(
            403,
            f"Pages of {origin!r} may not use this server. Start it with --cors-origins {origin} "
            "to allow them.",
            "permission_error",
            "origin_not_allowed",
        )


def _given_key(headers: Headers) -> str | None:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    return headers.get("x-api-key") or None


def _digest(key: str) -> bytes:
    # Equal lengths, whatever was sent: the time of a comparison tells nothing.
    return hashlib.sha256(key.encode("latin-1", "replace")).digest()


def _check_form(headers: Headers) -> Refusal | None:
    """Refuse what a proxy in front may read in another way than this server."""
    if "content-length" in headers and "transfer-encoding" in headers:
        message = "Content-Length and Transfer-Encoding were given together. Send one of them."
        return Refusal(400, message, code="ambiguous_length")
    if "host" in headers and not _host_name(headers["host"]):
        return Refusal(400, "The header Host is empty. Send the server's name.", code="empty_host")
    return None


def _host_name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return host
