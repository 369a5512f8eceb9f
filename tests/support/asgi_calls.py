"""Calls into an ASGI app without a network, message by message: nothing is buffered on the way."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message


@dataclass
class Called:
    """What an app sent back."""

    messages: list[Message] = field(default_factory=list)
    num_unread: int = 0
    """Parts of the body that the app never asked for."""

    @property
    def status(self) -> int:
        """The answer's status."""
        return int(self.messages[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        """The answer's headers, names in small letters."""
        pairs = self.messages[0]["headers"]
        return {name.decode().lower(): value.decode() for name, value in pairs}

    @property
    def body(self) -> bytes:
        """The whole body."""
        return b"".join(message.get("body", b"") for message in self.messages[1:])

    @property
    def error(self) -> dict[str, Any]:
        """The error object of OpenAI's form."""
        error: dict[str, Any] = json.loads(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error


@dataclass
class Client:
    """Someone who calls an app."""

    app: ASGIApp
    headers: dict[str, str] = field(default_factory=dict)

    def get(self, path: str, /, **headers: str) -> Called:
        """Call with GET and wait for the whole answer."""
        return asyncio.run(self.call("GET", path, [b""], headers))

    def post(
        self, path: str, parts: Sequence[bytes | float] = (b"{}",), /, **headers: str
    ) -> Called:
        """Call with POST; the body comes in parts, and a number among them is a pause."""
        return asyncio.run(self.call("POST", path, parts, headers))

    async def call(
        self,
        method: str,
        path: str,
        parts: Sequence[bytes | float] = (b"{}",),
        headers: dict[str, str] | None = None,
        called: Called | None = None,
    ) -> Called:
        """Call, and note each message the moment it is sent; in headers, _ stands for -."""
        seen, rest = called or Called(), list(parts)
        given = {"host": "127.0.0.1:8000", **self.headers, **(headers or {})}
        raw = [(n.replace("_", "-").lower().encode(), v.encode()) for n, v in given.items()]
        scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode()}
        scope |= {"headers": raw, "query_string": b"", "http_version": "1.1", "scheme": "http"}
        scope |= {"client": ("192.0.2.7", 1234), "server": ("127.0.0.1", 8000), "root_path": ""}

        async def receive() -> Message:
            while rest and isinstance(rest[0], float):
                await asyncio.sleep(rest.pop(0))  # type: ignore[arg-type]  # it is a float
            if rest:
                return {"type": "http.request", "body": rest.pop(0), "more_body": bool(rest)}
            await asyncio.Event().wait()  # the client stays and listens
            raise AssertionError

        async def send(message: Message) -> None:
            seen.messages.append(message)

        await self.app(scope, receive, send)
        seen.num_unread = len(rest)
        return seen
