"""`/completion`, `/infill`, `/props`, `/slots`, `/apply-template`: llama.cpp's own API.

In:  llama.cpp's requests. Out: llama.cpp's answers, as far as they mean something here.
"""

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from headlong.provenance import own_version
from headlong.server.answering import answer_with
from headlong.server.call import CallKind
from headlong.server.chat_protocol import ChatBody, ChatMessage, Tool
from headlong.server.completions import prepare_completion
from headlong.server.llama_format import LlamaFormat
from headlong.server.llama_protocol import DEFAULTS, InfillBody, LlamaBody
from headlong.server.preparation import render_messages
from headlong.server.response_schemas import ERRORS, EVENTS
from headlong.server.service import service_of
from headlong.server.translation import OpenBody, inner_body

LLAMA = CallKind("llama_completion", "/completion", "cmpl", "completion", "completion")
INFILL = CallKind("infill", "/infill", "infill", "completion", "completion")

router = APIRouter(tags=["llama.cpp"])


class ApplyBody(OpenBody):
    """A conversation to be written as the model reads it."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    tools: list[Tool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class WrittenPrompt(BaseModel):
    """A conversation as text."""

    prompt: str


@router.post(LLAMA.route, responses=EVENTS, response_class=Response)
async def complete(body: LlamaBody, request: Request) -> Response:
    """Continue a prompt, in llama.cpp's form."""
    service = service_of(request)
    translate = partial(body.to_completion, service.model.tokenizer)
    plain = await service.in_text_thread(translate)
    prepare = partial(prepare_completion, warnings=body.open_warnings())
    return await answer_with(prepare, LLAMA, plain, request, LlamaFormat)


@router.post(INFILL.route, responses=EVENTS, response_class=Response)
async def infill(body: InfillBody, request: Request) -> Response:
    """Fill in the text between two others, in llama.cpp's format."""
    prepare = partial(prepare_completion, warnings=body.open_warnings())
    return await answer_with(prepare, INFILL, body.to_completion(), request, LlamaFormat)


@router.post("/apply-template", responses=ERRORS)
async def apply_template(body: ApplyBody, request: Request) -> WrittenPrompt:
    """Write a conversation with the model's chat template."""
    service = service_of(request)
    fields = body.model_dump(include={"messages", "tools", "chat_template_kwargs"})
    chat = inner_body(ChatBody, fields)
    tools = chat.form_options().get("tools")
    write = partial(render_messages, service, chat.messages, chat.template_options(tools))
    return WrittenPrompt(prompt=(await service.in_text_thread(write)).text)


@router.get("/props")
async def get_props(request: Request) -> dict[str, Any]:
    """Return the server's properties and default settings."""
    service = service_of(request)
    tokenizer = service.model.tokenizer
    template = tokenizer.chat_template
    bos = "" if tokenizer.bos_id is None else tokenizer.token_text(tokenizer.bos_id)
    return {
        "default_generation_settings": {
            "n_ctx": service.max_sequence_tokens,
            "params": {**DEFAULTS, "n_predict": -1, "repeat_penalty": 1.0},
        },
        "total_slots": service.model.engine.limits.max_running,
        "model_alias": service.model_id,
        "model_path": service.model.path.name,
        "chat_template": "" if template is None else template.source,
        "bos_token": bos,
        "eos_token": tokenizer.eos_token,
        "modalities": {"vision": False, "audio": False},
        "build_info": f"headlong {own_version()}",
    }


@router.get("/slots")
async def get_slots(request: Request) -> list[dict[str, Any]]:
    """Tell how many requests run; which slot has which request is not a question here."""
    service = service_of(request)
    now = service.worker.snapshot()
    return [
        {"id": i, "n_ctx": service.max_sequence_tokens, "is_processing": i < now.num_running}
        for i in range(service.model.engine.limits.max_running)
    ]
