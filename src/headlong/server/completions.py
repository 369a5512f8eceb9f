"""`POST /v1/completions`: text goes on where the prompt ends.

In:  OpenAI's request, prompts as text or token ids. Out: OpenAI's answer, streamed or whole.
"""

from collections.abc import Sequence
from functools import partial

from fastapi import APIRouter, Request, Response

from headlong.config import MtpMode
from headlong.errors import TextError
from headlong.server.answer_stream import ChoiceRequest
from headlong.server.answering import AnswerResponse
from headlong.server.call import COMPLETION, Call
from headlong.server.choices import Wants
from headlong.server.completion_choice import CompletionChoice
from headlong.server.completions_protocol import CompletionBody
from headlong.server.mtp_choice import HEADER, choose_mtp
from headlong.server.openai_errors import bad_request
from headlong.server.planning import (
    Plan,
    Planner,
    check_body,
    check_prompt,
    check_text,
    room_warnings,
)
from headlong.server.response_schemas import COMPLETION_RESPONSES
from headlong.server.service import Service, service_of

DEFAULT_MAX_TOKENS = 16
"""OpenAI's, for this route only."""

router = APIRouter(tags=["completions"])


@router.post(COMPLETION.route, responses=COMPLETION_RESPONSES, response_class=Response)
async def create_completion(body: CompletionBody, request: Request) -> Response:
    """Continue one or many prompts."""
    service = service_of(request)
    mtp = choose_mtp(body, request.headers.get(HEADER), service.default_mtp(request))
    call = Call(COMPLETION, request, service, mtp)
    plan = await service.in_text_thread(partial(plan_completion, service, body, mtp))
    return AnswerResponse(call, plan, body)


def plan_completion(service: Service, body: CompletionBody, mtp: MtpMode) -> Plan:
    """Turn a body into requests and writers."""
    prompts = body.prompts()
    check_body(service, body, len(prompts))
    _check(body)
    options = {"max_tokens": body.max_tokens or DEFAULT_MAX_TOKENS, "logprobs": body.logprobs}
    planner = Planner(service, body, mtp, options, continues_text=True)
    wants = Wants.of(body, logprobs=body.logprobs is not None)
    tokenizer = service.llm.tokenizer
    choices, writers, warnings = list[ChoiceRequest](), list[CompletionChoice](), body.warnings()
    for prompt in prompts:
        prompt_ids = _encode(service, prompt)
        warnings += room_warnings(service, body.max_tokens, len(prompt_ids))
        echo = _echo(service, prompt) if body.echo else ""
        for choice in planner.choices_for(prompt_ids):
            writers.append(CompletionChoice(len(choices), wants, tokenizer, echo))
            choices.append(choice)
    return Plan(choices, writers, len(prompts), warnings)


def _check(body: CompletionBody) -> None:
    if body.best_of is not None and body.best_of != body.num_choices:
        message = (
            f"best_of is {body.best_of}, n is {body.num_choices}. This server returns all it"
            " generates: leave best_of out, or set it to n."
        )
        raise bad_request(message, "best_of", "invalid_value")
    if body.echo and body.logprobs is not None:
        message = "echo and logprobs were given together. Prompts have no log-probabilities here."
        raise bad_request(message, "echo", "invalid_value")


def _encode(service: Service, prompt: str | Sequence[int]) -> Sequence[int]:
    if isinstance(prompt, str):
        check_text(service, prompt, "prompt")
    try:
        prompt_ids = service.llm.encode(prompt)
    except TextError as error:
        raise bad_request(str(error), "prompt", "invalid_value") from error
    check_prompt(service, len(prompt_ids), "prompt")
    vocab_size = service.llm.engine.vocab_size
    unknown = [token_id for token_id in prompt_ids if token_id >= vocab_size]
    if unknown:
        message = f"prompt has the token id {unknown[0]}. Ids go from 0 to {vocab_size - 1}."
        raise bad_request(message, "prompt", "invalid_value")
    return prompt_ids


def _echo(service: Service, prompt: str | Sequence[int]) -> str:
    return prompt if isinstance(prompt, str) else service.llm.tokenizer.decode(prompt)
