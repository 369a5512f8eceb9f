"""The page at `/`: its files, and what its charts, table and card are made of.

In:  requests of a browser. Out: the files of the folder `page/` as they are, and JSON under
     `/headlong/`. The chat and the race use the same API as every other client.
"""

import math
from collections import Counter
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from headlong.server.service import Service, client_of, service_of
from headlong.weights.checkpoint import open_checkpoint

FOLDER = Path(__file__).parent / "page"

_folder = StaticFiles(directory=FOLDER)
_FILES = {"/": "index.html", "/favicon.ico": "icon.svg"}

router = APIRouter(include_in_schema=False)

_HEAD_NAMES = {"eagle3": "EAGLE-3", "nextn": "nextn", "medusa": "Medusa", "meta": "parallel"}
_DRAFTER_NAMES = {
    "chain": "n-grams, then head",
    "ngram": "n-grams",
    "head": "head",
    "draft-model": "draft model",
}


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
    card: dict[str, Any] = state.card
    return card


def _make_card(service: Service) -> dict[str, Any]:
    """Say what the model is, what drafts for it and what computes it; reads no weights again."""
    llm = service.llm
    drafter = llm.drafter
    return {
        "id": service.model_id,
        "name": service.model_id,
        "weights": _describe_weights(service),
        "head": _describe_head(service),
        "drafter": "none" if drafter is None else _DRAFTER_NAMES.get(drafter.name, drafter.name),
        "reasons": _reasons(service),
        "context_length": service.context_length,
        "backend": llm.engine.backend,
        "version": version("headlong"),
    }


def _reasons(service: Service) -> bool:
    template = service.llm.tokenizer.chat_template
    return template is not None and template.tags is not None


def _describe_weights(service: Service) -> str:
    """Name the format most bytes are in, and the number of parameters."""
    tensors = open_checkpoint(service.llm.model_path).tensors
    used = [tensors[name] for name in service.llm.report.used if name in tensors]
    num_bytes: Counter[str] = Counter()
    for tensor in used:
        num_bytes[tensor.type.name] += tensor.num_bytes
    num_parameters = sum(math.prod(tensor.shape) for tensor in used)
    formats = [name for name, _ in num_bytes.most_common(1)]
    if service.settings.quant is not None:
        formats.append(f"as {service.settings.quant}")
    return f"{' '.join(formats)}, {_in_words(num_parameters)} parameters"


def _describe_head(service: Service) -> str:
    head = service.llm.head
    if head is None:
        return "none"
    parts = [_HEAD_NAMES.get(head.kind, head.kind), head.report.quant or "as stored"]
    if head.vocabulary is not None:
        parts.append(f"{len(head.vocabulary):,} tokens")
    return ", ".join(parts)


def _in_words(number: int) -> str:
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return str(number)
