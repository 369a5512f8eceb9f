"""`POST /tokenize` and `POST /detokenize`: text to token ids and back.

In:  text or messages; token ids. Out: token ids with their number and the limit; text.
The names are vLLM's.
"""

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from headlong.server.chat_protocol import ChatMessage, Tool
from headlong.server.preparation import check_text, prepare_messages
from headlong.server.protocol import Body, TokenId
from headlong.server.refusal import bad_request
from headlong.server.response_schemas import ERRORS
from headlong.server.service import Service, service_of
from headlong.text.chat_template import ChatOptions

router = APIRouter(tags=["tokens"])


class TokenizeBody(Body):
    """Text, or messages, to be made into token ids."""

    model: str | None = None
    prompt: str | None = Field(None, description="Plain text.")
    content: str | None = Field(None, description="llama.cpp's name of prompt.")
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = Field(
        None, description="A conversation; the chat template is applied."
    )
    tools: list[Tool] | None = Field(None, description="Only with messages.")
    add_special_tokens: bool = Field(True, description="Of plain text: put the model's BOS first.")
    add_generation_prompt: bool = Field(True, description="Of messages: end as for an answer.")
    continue_final_message: bool = Field(False, description="Of messages: end in the last one.")
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Further variables of the chat template."
    )
    return_token_strs: bool = Field(False, description="Give each token's text as well.")


class Tokens(BaseModel):
    """Token ids of a text."""

    count: int
    max_model_len: int = Field(description="The model's context.")
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeBody(Body):
    """Token ids to be made into text."""

    model: str | None = None
    tokens: list[TokenId]


class Detokenized(BaseModel):
    """The text of token ids."""

    prompt: str
    content: str = Field(description="The same, as llama.cpp calls it.")


@router.post("/tokenize", responses=ERRORS)
async def tokenize(body: TokenizeBody, request: Request) -> Tokens:
    """Count the tokens of a text or a conversation."""
    service = service_of(request)
    service.check_model(body.model)
    if body.prompt is None:
        body.prompt = body.content
    if (body.prompt is None) == (body.messages is None):
        raise bad_request("Give either prompt or messages.", "prompt", "invalid_value")
    if body.tools and body.messages is None:
        raise bad_request("tools was given without messages.", "tools", "invalid_value")
    return await service.in_text_thread(partial(_count, service, body))


@router.post("/detokenize", responses=ERRORS)
async def detokenize(body: DetokenizeBody, request: Request) -> Detokenized:
    """Return the text of token ids, control tokens included."""
    service = service_of(request)
    service.check_model(body.model)
    decode = partial(service.model.tokenizer.decode, body.tokens, skip_special=False)
    text = await service.in_text_thread(decode)
    return Detokenized(prompt=text, content=text)


def _count(service: Service, body: TokenizeBody) -> Tokens:
    tokenizer = service.model.tokenizer
    if body.messages is None:
        text = body.prompt or ""
        check_text(service, text, "prompt")
        ids = tokenizer.encode(text, add_special=body.add_special_tokens)
    else:
        tools = [tool.model_dump(exclude_none=True) for tool in body.tools or ()]
        options = ChatOptions(
            tools or None,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            kwargs=body.chat_template_kwargs or {},
        )
        ids = list(prepare_messages(service, body.messages, options).token_ids)
    texts = [tokenizer.token_text(i) for i in ids] if body.return_token_strs else None
    return Tokens(
        count=len(ids), max_model_len=service.context_length, tokens=ids, token_strs=texts
    )
