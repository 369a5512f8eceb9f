"""`POST /v1/chat/completions`: an answer to a conversation, in words or tool calls.

In:  OpenAI's request. Out: OpenAI's answer, streamed or whole.
Messages and tools are written by the model's chat template; what the answer must look like (JSON,
a call) becomes a grammar that the engine follows token by token.
"""

import secrets
from functools import partial

from fastapi import APIRouter, Request, Response

from headlong.config import MtpMode
from headlong.server.answering import AnswerResponse
from headlong.server.call import CHAT, Call
from headlong.server.chat_choice import ChatChoice
from headlong.server.chat_protocol import ChatBody
from headlong.server.choices import Wants
from headlong.server.mtp_choice import HEADER, choose_mtp
from headlong.server.openai_errors import bad_request
from headlong.server.planning import (
    Plan,
    Planner,
    check_body,
    check_prompt,
    encode_messages,
    room_warnings,
)
from headlong.server.response_schemas import CHAT_RESPONSES
from headlong.server.service import Service, service_of
from headlong.text.answer_form import AnswerForm, read_form
from headlong.text.tokenizer import Tokenizer
from headlong.text.tool_calls import ToolCallReader

router = APIRouter(tags=["completions"])


@router.post(CHAT.route, responses=CHAT_RESPONSES, response_class=Response)
async def create_chat_completion(body: ChatBody, request: Request) -> Response:
    """Answer a conversation."""
    service = service_of(request)
    mtp = choose_mtp(body, request.headers.get(HEADER), service.default_mtp(request))
    call = Call(CHAT, request, service, mtp)
    plan = await service.in_text_thread(partial(plan_chat, service, body, mtp))
    return AnswerResponse(call, plan, body)


def plan_chat(service: Service, body: ChatBody, mtp: MtpMode) -> Plan:
    """Turn a body into requests and writers."""
    check_body(service, body)
    _check(body)
    form, tokenizer = read_form(body.form_options()), service.llm.tokenizer
    prompt_ids = encode_messages(service, body.messages, form.tools)
    check_prompt(service, len(prompt_ids), "messages")
    max_tokens = body.max_completion_tokens or body.max_tokens
    options = {
        "max_tokens": max_tokens,
        "logprobs": (body.top_logprobs or 0) if body.logprobs else None,
    }
    planner = Planner(service, body, mtp, options, form.make_grammar(tokenizer))
    wants = Wants.of(body, logprobs=bool(body.logprobs))
    choices = planner.choices_for(prompt_ids)
    writers = [
        ChatChoice(i, wants, tokenizer, _make_reader(form, tokenizer)) for i in range(len(choices))
    ]
    warnings = body.warnings() + room_warnings(service, max_tokens, len(prompt_ids))
    return Plan(choices, writers, 1, warnings)


def _check(body: ChatBody) -> None:
    asked = (body.max_tokens, body.max_completion_tokens)
    if None not in asked and asked[0] != asked[1]:
        message = f"max_tokens is {asked[0]}, max_completion_tokens is {asked[1]}. Keep one."
        raise bad_request(message, "max_tokens", "invalid_value")
    if body.top_logprobs and not body.logprobs:
        message = f"top_logprobs is {body.top_logprobs}, but logprobs is not true. Set it."
        raise bad_request(message, "top_logprobs", "invalid_value")
    if not body.tools and body.tool_choice not in (None, "none", "auto"):
        message = "tool_choice demands a call, but there are no tools. Give some."
        raise bad_request(message, "tool_choice", "invalid_value")


def _make_reader(form: AnswerForm, tokenizer: Tokenizer) -> ToolCallReader | None:
    """Return who finds calls in an answer, if there may be any; ids differ between answers."""
    if form.tools is None:
        return None
    return ToolCallReader(secrets.token_hex(8), tokenizer.tool_style, form.tool_names)
