"""The web page at `/`: its files, and the data of its charts, table and model card.

In:  requests of a browser. Out: the files of the folder `page/` as they are, and JSON under
     `/headlong/`. The chat and the race use the same API as every other client.
"""

from functools import partial
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from headlong.provenance import own_version
from headlong.server.replicas import describe
from headlong.server.service import Service, client_of, service_of

FOLDER = Path(__file__).parent / "page"

_folder = StaticFiles(directory=FOLDER)
_FILES = {"/": "index.html", "/favicon.ico": "icon.svg"}

router = APIRouter(include_in_schema=False)


@router.get("/")
@router.get("/favicon.ico")
@router.get("/page/{name}")
async def get_file(request: Request) -> Response:
    """Return a file of the page; browsers ask for the icon before they have read the page."""
    name = request.path_params.get("name") or _FILES[request.scope["route"].path]
    response = await _folder.get_response(name, request.scope)
    # Ask every time, get "not modified" mostly: a new version is seen at once.
    response.headers["Cache-Control"] = "no-cache"
    return response


@router.get("/headlong/live")
async def get_live(request: Request) -> dict[str, Any]:
    """Return what the server did in the last two minutes."""
    return service_of(request).live.report()


@router.get("/headlong/requests")
async def get_requests(request: Request) -> dict[str, Any]:
    """Return the recent requests, newest first; where keys are in use, those of one's own key."""
    client = client_of(request)
    records = service_of(request).live.latest()
    own = [one for one in records if client is None or one.client == client.name]
    return {"requests": [record.to_dict() for record in own]}


@router.get("/headlong/model")
async def get_model(request: Request) -> dict[str, Any]:
    """Return the model's card, made when it is first asked for."""
    service, state = service_of(request), request.app.state
    if not hasattr(state, "card"):
        state.card = await service.in_text_thread(partial(_make_card, service))
    return {**state.card, "replicas": [describe(one) for one in service.model.replicas]}


def _make_card(service: Service) -> dict[str, Any]:
    """Say what the model is, what drafts for it and what computes it; reads no weights again."""
    model = service.model
    return {
        "id": service.model_id,
        "name": service.model_id,
        "weights": model.describe_weights(),
        "head": model.head_words,
        "drafter": model.drafter_words,
        "reasons": _reasons(service),
        "context_length": service.context_length,
        "backend": model.engine.backend,
        "version": own_version(),
    }


def _reasons(service: Service) -> bool:
    template = service.model.tokenizer.chat_template
    return template is not None and template.tags is not None
