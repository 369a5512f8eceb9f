"""`/v1/responses`: OpenAI's newer API, with conversations that the server remembers.

In:  OpenAI's request. Out: OpenAI's response, streamed or whole. What is kept is in memory only.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.responses import JSONResponse

from headlong.server.answer_format import to_json
from headlong.server.answering import answer_with
from headlong.server.call import Call, CallKind
from headlong.server.chat import prepare_chat
from headlong.server.preparation import PreparedAnswer
from headlong.server.refusal import ApiError, Refusal
from headlong.server.response_schemas import EVENTS
from headlong.server.response_store import KeptResponse
from headlong.server.responses_format import ResponsesFormat
from headlong.server.responses_protocol import Message, ResponsesBody
from headlong.server.service import Service, client_of, service_of

RESPONSES = CallKind("responses", "/v1/responses", "resp", "response", "response")

router = APIRouter(tags=["responses"])


@router.post(RESPONSES.route, responses=EVENTS, response_class=Response)
async def create_response(body: ResponsesBody, request: Request) -> Response:
    """Answer a conversation, in the form of OpenAI's responses."""
    service, client = service_of(request), _client_name(request)
    before: Sequence[Mapping[str, Any]] = ()
    if body.previous_response_id is not None:
        before = _find(service, body.previous_response_id, client).messages
    messages = [*map(dict, before), *body.input_messages()]
    prepare = partial(prepare_chat, warnings=_warnings(body))
    chat = body.to_chat(messages)
    make_format = partial(_make_format, body=body, messages=messages, client=client)
    return await answer_with(prepare, RESPONSES, chat, request, make_format)


@router.get(f"{RESPONSES.route}/{{response_id}}", responses=EVENTS, response_class=Response)
async def get_response(response_id: str, request: Request) -> Response:
    """Return a response that is still kept."""
    kept = _find(service_of(request), response_id, _client_name(request))
    return Response(to_json(kept.response), media_type="application/json")


@router.delete(f"{RESPONSES.route}/{{response_id}}", responses=EVENTS, response_class=Response)
async def delete_response(response_id: str, request: Request) -> Response:
    """Forget a response."""
    service, client = service_of(request), _client_name(request)
    _find(service, response_id, client)
    service.responses.forget(response_id, client)
    return JSONResponse({"id": response_id, "object": "response", "deleted": True})


def _make_format(
    call: Call,
    prepared: PreparedAnswer,
    *,
    body: ResponsesBody,
    messages: Sequence[Message],
    client: str | None,
) -> ResponsesFormat:
    service = call.service

    def keep(response: Mapping[str, Any], message: Mapping[str, Any]) -> None:
        if body.store is False:
            return
        conversation = [*messages, message]
        num_bytes = len(to_json([response, conversation]))
        kept = KeptResponse(client, response, conversation, num_bytes)
        service.responses.keep(str(response["id"]), kept)

    return ResponsesFormat(_head(call, body), keep)


def _head(call: Call, body: ResponsesBody) -> dict[str, Any]:
    """Return what is known of a response before its output."""
    asked = body.model_dump(by_alias=True, exclude_none=True)
    head = call.head("response")
    return {
        "id": call.id.replace("-", "_"),
        "object": "response",
        "created_at": head["created"],
        "model": head["model"],
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": asked.get("reasoning"),
        "store": body.store is not False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": asked.get("text") or {"format": {"type": "text"}},
        "tool_choice": asked.get("tool_choice") or "auto",
        "tools": asked.get("tools") or [],
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
    }


def _warnings(body: ResponsesBody) -> list[str]:
    idle = ["top_logprobs has no effect here."] if body.top_logprobs is not None else []
    return idle + body.open_warnings()


def _find(service: Service, response_id: str, client: str | None) -> KeptResponse:
    kept = service.responses.find(response_id, client)
    if kept is None:
        message = (
            f"There is no response {response_id[:100]!r}. The server keeps the newest"
            f" {service.responses.max_responses}, in memory; send the whole conversation instead."
        )
        raise ApiError(Refusal(404, message, code="not_found", param="previous_response_id"))
    return kept


def _client_name(request: Request) -> str | None:
    client = client_of(request)
    return None if client is None else client.name
