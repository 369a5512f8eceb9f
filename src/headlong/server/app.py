"""The app: routes, door, lifespan.

In:  a loaded model and settings. Out: a FastAPI app, ready for uvicorn; `app.state` holds the
     `service` that routes use, and the `worker` and `in_flight` that a drain needs.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import fields
from functools import partial
from importlib.metadata import version

from fastapi import FastAPI

from headlong.engine.limits import EngineLimits
from headlong.errors import RequestError
from headlong.llm import LLM
from headlong.server import chat, completions, looking, page, tokenizing
from headlong.server.door import add_door
from headlong.server.live import Live
from headlong.server.metrics import Metrics
from headlong.server.openai_errors import add_error_handlers
from headlong.server.records import Records
from headlong.server.service import Service
from headlong.server.settings import ServerSettings
from headlong.server.worker import EngineWorker
from headlong.text.grammar import prepare_grammars

_DESCRIPTION = """\
OpenAI's API, with multi-token prediction decided for every request by measured gain.
Say `"mtp": "auto" | "off" | K` in a body; the text is the same with each.
"""


def make_app(llm: LLM, settings: ServerSettings) -> FastAPI:
    """Build the server around a loaded model and its engine.

    Raises:
        RequestError: The engine was loaded with other limits than the settings name.
    """
    _check_limits(llm.engine.limits, settings.engine_limits)
    worker = EngineWorker(llm.engine)
    metrics = Metrics(worker.snapshot)
    live = Live(worker.snapshot)
    most = llm.engine.max_sequence_tokens
    service = Service(llm, settings, worker, metrics, Records(), live, most)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # Now rather than in the first request that wants JSON, with others waiting behind it.
        await service.in_text_thread(partial(prepare_grammars, llm.tokenizer))
        worker.start()
        watching = asyncio.create_task(live.watch())
        yield
        watching.cancel()
        await worker.drain(0)
        service.text_thread.shutdown(wait=False, cancel_futures=True)

    app = FastAPI(
        title="Headlong",
        description=_DESCRIPTION,
        version=version("headlong"),
        lifespan=lifespan,
        # Their pages come from elsewhere, and this server must work without a network.
        docs_url=None,
        redoc_url=None,
    )
    app.state.service = service
    app.state.worker = worker
    app.state.in_flight = add_door(app, settings, metrics)
    add_error_handlers(app)
    for routes in (chat, completions, tokenizing, looking):
        app.include_router(routes.router)
    if settings.page:
        app.include_router(page.router)
    return app


def _check_limits(loaded: EngineLimits, wanted: EngineLimits) -> None:
    for field in fields(EngineLimits):
        has, wants = getattr(loaded, field.name), getattr(wanted, field.name)
        if has != wants:
            raise RequestError(
                f"The engine was loaded with {field.name} {has}; the settings say {wants}.",
                "Load the model with limits=settings.engine_limits.",
            )
