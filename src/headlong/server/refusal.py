"""How the server says no: OpenAI's error form, at any point of an answer.

In:  a status, a message, OpenAI's type and code. Out: a body for JSON, or a whole answer over ASGI.
Clients read `error.message`, `error.type`, `error.param` and `error.code`.
"""

import json
import math
from dataclasses import dataclass
from typing import Any

from starlette.types import Send


@dataclass(frozen=True, slots=True)
class Refusal:
    """One refusal."""

    status: int
    message: str
    type: str = "invalid_request_error"
    code: str | None = None
    param: str | None = None
    retry_after_s: float | None = None
    """When it may go better; rounded up to whole seconds in the header."""

    @property
    def body(self) -> dict[str, Any]:
        """The answer's JSON."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }

    @property
    def headers(self) -> dict[str, str]:
        """Headers besides type and length."""
        headers: dict[str, str] = {}
        if self.retry_after_s is not None:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after_s)))
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        if self.status in (408, 413):
            headers["connection"] = "close"  # the rest of the body is not wanted
        return headers


async def send_refusal(send: Send, refusal: Refusal) -> None:
    """Answer with a refusal; nothing must have been sent before."""
    body = json.dumps(refusal.body).encode()
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        **refusal.headers,
    }
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


async def end_stream(send: Send, refusal: Refusal) -> None:
    """End a stream of events that has begun: its last event is the refusal."""
    event = f"data: {json.dumps(refusal.body)}\n\n".encode()
    await send({"type": "http.response.body", "body": event, "more_body": False})
