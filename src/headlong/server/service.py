"""What all routes of one server share: the model, the worker, the settings and the counters.

In:  a loaded model and settings. Out: one record, `app.state.service`.
Text becomes tokens in a thread of its own, so that a long prompt holds up neither the event loop
nor the engine; one thread, because a model's template may not be safe in two.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar, cast

from fastapi import Request

from headlong.config import MtpMode
from headlong.server.live import Live
from headlong.server.metrics import Metrics
from headlong.server.refusal import ApiError, Refusal
from headlong.server.response_store import ResponseStore
from headlong.server.served_model import ServedModel
from headlong.server.settings import ApiKey, ServerSettings
from headlong.server.worker import EngineWorker
from headlong.weights.catalog import find_entry

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Service:
    """One running server."""

    model: ServedModel
    settings: ServerSettings
    worker: EngineWorker
    metrics: Metrics
    live: Live
    """The recent past, for the page."""
    max_sequence_tokens: int
    """Tokens of prompt and answer together: the context, or less where memory is short."""
    responses: ResponseStore = field(default_factory=ResponseStore)
    """What `/v1/responses` goes on from."""
    created_s: int = field(default_factory=lambda: int(time.time()))
    """When the model was loaded, as `/v1/models` shows it."""
    text_thread: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="headlong-text")
    )

    @property
    def model_id(self) -> str:
        """What clients call the model."""
        return self.settings.model_name or self.model.path.stem

    @property
    def context_length(self) -> int:
        """Tokens, prompt and answer, that the model can attend to."""
        return self.model.engine.context_length

    @property
    def max_prompt_tokens(self) -> int:
        """The longest prompt: an answer of one token must fit behind it."""
        room = self.max_sequence_tokens - 1
        return min(self.settings.max_prompt_tokens or room, room)

    def default_mtp(self, request: Request) -> MtpMode:
        """Return the `mtp` of a request that names none: its key's, else the server's."""
        client = client_of(request)
        of_key = client.mtp if client is not None else None
        return self.settings.mtp if of_key is None else of_key

    def check_model(self, name: str | None) -> None:
        """Refuse a model that is not the one served; "default" and its catalogue names are it."""
        path = self.model.path
        names = {None, "default", self.settings.model, self.model_id, path.stem, path.name}
        entry = find_entry(name or "")
        if name in names or (entry is not None and entry.file_name == path.name):
            return
        assert name is not None
        message = f"There is no model {name[:200]!r} here. This server has {self.model_id!r}."
        raise ApiError(Refusal(404, message, code="model_not_found", param="model"))

    async def in_text_thread(self, work: Callable[[], T]) -> T:
        """Run `work` where text is made into tokens."""
        return await asyncio.get_running_loop().run_in_executor(self.text_thread, work)


def service_of(request: Request) -> Service:
    """Return the service behind a request."""
    return cast(Service, request.app.state.service)


def client_of(request: Request) -> ApiKey | None:
    """Return whose API key a request came with, if any."""
    client: ApiKey | None = getattr(request.state, "client", None)
    return client
