"""`/api/…`: Ollama's API, as far as one served model has a use for it.

In:  Ollama's requests. Out: Ollama's answers, streamed unless told otherwise. Models cannot be
     pulled, made or deleted here.
"""

from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import Field
from starlette.responses import JSONResponse

from headlong.provenance import own_version
from headlong.server.answering import answer_with
from headlong.server.call import CallKind
from headlong.server.chat import prepare_chat
from headlong.server.completions import prepare_completion
from headlong.server.ollama_format import OllamaFormat, now
from headlong.server.ollama_protocol import OllamaChatBody, OllamaGenerateBody
from headlong.server.refusal import bad_request
from headlong.server.response_schemas import EVENTS
from headlong.server.service import Service, service_of
from headlong.server.translation import OpenBody

API_VERSION = "0.12.0"
"""The version of Ollama whose API this is; its clients look what a server can do."""

OLLAMA_CHAT = CallKind("ollama_chat", "/api/chat", "chat", "chat", "chat")
OLLAMA_GENERATE = CallKind("ollama_generate", "/api/generate", "gen", "generate", "generate")

router = APIRouter(tags=["ollama"])


class ShowBody(OpenBody):
    """Names a model."""

    model: str | None = Field(None, description="A name that `/api/tags` lists, or `default`.")
    name: str | None = Field(None, description="The older name of `model`.")


@router.post(OLLAMA_CHAT.route, responses=EVENTS, response_class=Response)
async def chat(body: OllamaChatBody, request: Request) -> Response:
    """Answer a conversation, in Ollama's form."""
    if not body.messages:
        empty = {"message": {"role": "assistant", "content": ""}}
        return _loaded(service_of(request), body.model, empty)
    prepare = partial(prepare_chat, warnings=body.idle_warnings())
    make_format = partial(OllamaFormat, is_chat=True)
    return await answer_with(prepare, OLLAMA_CHAT, body.to_chat(), request, make_format)


@router.post(OLLAMA_GENERATE.route, responses=EVENTS, response_class=Response)
async def generate(body: OllamaGenerateBody, request: Request) -> Response:
    """Answer one prompt, or continue a text, in Ollama's form."""
    service = service_of(request)
    if not body.prompt:
        return _loaded(service, body.model, {"response": ""})
    warnings = body.idle_warnings()
    warnings += ["context has no effect here."] if body.context else []
    make_format = partial(OllamaFormat, is_chat=False)
    if body.raw or body.suffix is not None or service.model.tokenizer.chat_template is None:
        plain = body.to_completion(body.prompt)
        prepare_plain = partial(prepare_completion, warnings=warnings)
        return await answer_with(prepare_plain, OLLAMA_GENERATE, plain, request, make_format)
    prepare = partial(prepare_chat, warnings=warnings)
    return await answer_with(prepare, OLLAMA_GENERATE, body.to_chat(), request, make_format)


@router.get("/api/version")
async def get_version() -> dict[str, str]:
    """Return the version of the API, and of this server."""
    return {"version": API_VERSION, "headlong": own_version()}


@router.get("/api/tags")
@router.get("/api/ps")
async def list_models(request: Request) -> dict[str, Any]:
    """List the model; it is always loaded."""
    service = service_of(request)
    files = _files(service.model.path)
    name = f"{service.model_id}:latest"
    changed_s = max(file.stat().st_mtime for file in files)
    card = {
        "name": name,
        "model": name,
        "modified_at": datetime.fromtimestamp(changed_s, UTC).isoformat(),
        "size": sum(file.stat().st_size for file in files),
        "digest": "",
        "details": _details(service),
        "context_length": service.context_length,
    }
    return {"models": [card]}


@router.post("/api/show", responses=EVENTS, response_class=Response)
async def show_model(body: ShowBody, request: Request) -> Response:
    """Describe the model."""
    service = service_of(request)
    name = body.model or body.name
    if name is None:
        raise bad_request("model is missing. Name one.", "model", "missing_field")
    service.check_model(name.removesuffix(":latest"))
    template = service.model.tokenizer.chat_template
    capabilities = ["completion"]
    if service.model.tokenizer.infill_tokens is not None:
        capabilities.append("insert")
    if template is not None:
        capabilities += ["tools", *(["thinking"] if template.tags is not None else [])]
    architecture = service.model.architecture
    info = {
        "general.architecture": architecture,
        f"{architecture}.context_length": service.context_length,
    }
    shown = {
        "modelfile": "",
        "parameters": "",
        "template": "" if template is None else template.source,
        "details": _details(service),
        "model_info": info,
        "capabilities": capabilities,
    }
    return JSONResponse(shown)


def _loaded(service: Service, name: str, content: dict[str, Any]) -> Response:
    """Answer a request to load the model, which is always loaded."""
    service.check_model(name.removesuffix(":latest"))
    done = {"done": True, "done_reason": "load"}
    return JSONResponse({"model": service.model_id, "created_at": now(), **content, **done})


def _details(service: Service) -> dict[str, Any]:
    family = service.model.architecture
    is_file = service.model.path.is_file()
    return {
        "parent_model": "",
        "format": "gguf" if is_file else "safetensors",
        "family": family,
        "families": [family],
        "parameter_size": "",
        "quantization_level": service.settings.quant or "",
    }


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else [one for one in path.iterdir() if one.is_file()]
