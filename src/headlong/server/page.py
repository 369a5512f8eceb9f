"""The page at `/`: its files, and what its charts, table and card are made of.

In:  requests of a browser. Out: the files of the folder `page/` as they are, and JSON under
     `/headlong/`. The chat and the race use the same API as every other client.
"""

from functools import partial
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from headlong.server.model_card import make_card
from headlong.server.service import client_of, service_of

FOLDER = Path(__file__).parent / "page"

_files = StaticFiles(directory=FOLDER)

router = APIRouter(include_in_schema=False)


@router.get("/")
async def get_index(request: Request) -> Response:
    """Return the page."""
    return await _serve("index.html", request)


@router.get("/favicon.ico")
async def get_icon(request: Request) -> Response:
    """Return the icon to browsers that ask before they have read the page."""
    return await _serve("icon.svg", request)


@router.get("/page/{name}")
async def get_file(name: str, request: Request) -> Response:
    """Return one file of the page."""
    return await _serve(name, request)


@router.get("/headlong/live")
async def get_live(request: Request) -> dict[str, Any]:
    """Return what the server did in the last two minutes."""
    return service_of(request).live.report()


@router.get("/headlong/requests")
async def get_requests(request: Request) -> dict[str, Any]:
    """Return the recent requests, newest first; where keys are in use, those of one's own key."""
    client = client_of(request)
    records = service_of(request).records.latest()
    own = [one for one in records if client is None or one.client == client.name]
    return {"requests": [record.to_dict() for record in own]}


@router.get("/headlong/model")
async def get_model(request: Request) -> dict[str, Any]:
    """Return the model's card, made when somebody first wants to see it."""
    service, state = service_of(request), request.app.state
    if not hasattr(state, "card"):
        state.card = await service.in_text_thread(partial(make_card, service))
    card: dict[str, Any] = state.card
    return card


async def _serve(name: str, request: Request) -> Response:
    response = await _files.get_response(name, request.scope)
    # Ask every time, get "not modified" mostly: a new version is seen at once.
    response.headers["Cache-Control"] = "no-cache"
    return response
