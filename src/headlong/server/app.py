"""The app: routes, middleware, error handlers, lifespan.

In:  a model and settings. Out: a FastAPI app, ready for uvicorn; `app.state` holds the
     `service` that routes use, and the `worker` and `in_flight` that a drain needs.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import fields
from functools import partial

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from headlong.engine.limits import EngineLimits
from headlong.errors import HeadlongError, RequestError
from headlong.provenance import own_version
from headlong.server import (
    chat,
    completions,
    embeddings,
    llama,
    messages,
    ollama,
    page,
    responses,
    status_routes,
    tokenizing,
)
from headlong.server.live import Live
from headlong.server.metrics import Metrics
from headlong.server.middleware import add_middleware
from headlong.server.refusal import ApiError, Refusal, refusal_for
from headlong.server.served_model import ServedModel
from headlong.server.service import Service
from headlong.server.settings import ServerSettings
from headlong.server.validation import refuse_body
from headlong.server.worker import EngineWorker
from headlong.text.grammar import prepare_grammars

_DESCRIPTION = """\
OpenAI's API, with multi-token prediction decided for every request by measured gain.
Say `"mtp": "auto" | "off" | K` in a body; the text is the same with each.
"""


_ROUTES = (
    chat,
    completions,
    responses,
    messages,
    embeddings,
    ollama,
    llama,
    tokenizing,
    status_routes,
)


def make_app(model: ServedModel, settings: ServerSettings) -> FastAPI:
    """Build the server around a model and its engine.

    Raises:
        RequestError: The engine was loaded with other limits than the settings name.
    """
    _check_limits(model.engine.limits, settings.engine_limits)
    worker = EngineWorker(model.engine)
    metrics = Metrics(worker.snapshot, model.replicas)
    live = Live(worker.snapshot)
    most = model.engine.max_sequence_tokens
    service = Service(model, settings, worker, metrics, live, most)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # Now rather than in the first request that wants JSON, with others waiting behind it.
        await service.in_text_thread(partial(prepare_grammars, model.tokenizer))
        worker.start()
        watching = asyncio.create_task(live.watch())
        yield
        watching.cancel()
        await worker.drain(0)
        service.text_thread.shutdown(wait=False, cancel_futures=True)

    app = FastAPI(
        title="Headlong",
        description=_DESCRIPTION,
        version=own_version(),
        lifespan=lifespan,
        # Their pages come from elsewhere, and this server must work without a network.
        docs_url=None,
        redoc_url=None,
    )
    app.state.service = service
    app.state.worker = worker
    app.state.in_flight = add_middleware(app, settings, metrics)
    add_error_handlers(app)
    for routes in _ROUTES:
        app.include_router(routes.router)
    if settings.page:
        app.include_router(page.router)
    return app


def add_error_handlers(app: FastAPI) -> None:
    """Make `app` answer every error in OpenAI's form."""
    for kind in (ApiError, HeadlongError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _answer_error)


async def _answer_error(request: Request, error: Exception) -> Response:
    match error:
        case ApiError():
            return error.refusal.response
        case HeadlongError():
            return refusal_for(error).response
        case RequestValidationError():
            return refuse_body(request, error).response
    assert isinstance(error, HTTPException)
    answer = _refuse_http(request, error).response
    answer.headers.update(error.headers or {})  # Allow, of 405
    return answer


def _refuse_http(request: Request, error: HTTPException) -> Refusal:
    asked = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        message = f"There is no {asked}. See /openapi.json for what there is."
        return Refusal(404, message, code="not_found")
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        return Refusal(405, f"There is no {asked}. Use {allowed}.", code="method_not_allowed")
    if error.status_code == 400:  # FastAPI's word for JSON that broke its parser
        return Refusal(400, "The body could not be read as JSON.", code="invalid_json")
    return Refusal(error.status_code, str(error.detail))


def _check_limits(loaded: EngineLimits, wanted: EngineLimits) -> None:
    for field in fields(EngineLimits):
        has, wants = getattr(loaded, field.name), getattr(wanted, field.name)
        if has != wants:
            problem = f"The engine was loaded with {field.name} {has}; the settings say {wants}."
            raise RequestError(problem, "Load the model with limits=settings.engine_limits.")
