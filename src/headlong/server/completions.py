"""`POST /v1/completions`: text goes on where the prompt ends.

In:  OpenAI's request: one or many prompts, as text or token ids.
Out: OpenAI's answer, streamed or whole.
"""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import Field

from headlong.config import MtpMode
from headlong.decode.sampling import TokenLogprob
from headlong.errors import TextError
from headlong.generation import Chunk
from headlong.prompt import PreparedPrompt
from headlong.server import preparation
from headlong.server.answer_stream import ChoiceRequest
from headlong.server.answering import answer_with
from headlong.server.call import COMPLETION
from headlong.server.choices import ChoiceWriter, TokenDetails
from headlong.server.protocol import GenerateBody, TokenId
from headlong.server.refusal import bad_request
from headlong.server.response_schemas import COMPLETION_RESPONSES
from headlong.server.service import Service
from headlong.text.detokenizer import Detokenizer
from headlong.text.tokenizer import Tokenizer

MAX_LOGPROBS = 20
MAX_PROMPTS = 64
DEFAULT_MAX_TOKENS = 16
"""OpenAI's, for this route only."""

router = APIRouter(tags=["completions"])


TokenIds = Annotated[list[TokenId], Field(min_length=1)]
# `_check` counts them: pydantic would complain of whichever kind of list was not meant.
_NUM_PROMPTS: Any = Field(min_length=1, json_schema_extra={"maxItems": MAX_PROMPTS})
Texts = Annotated[list[str], _NUM_PROMPTS]
TokenIdLists = Annotated[list[TokenIds], _NUM_PROMPTS]


class CompletionBody(GenerateBody):
    """A plain completion request: the text goes on where the prompt ends."""

    prompt: str | TokenIds | Texts | TokenIdLists
    max_tokens: int | None = Field(None, ge=1, description="New tokens at most. Default: 16.")
    logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_LOGPROBS,
        description="Give each token's log-probability, with so many alternatives.",
    )
    echo: bool | None = Field(
        None, description="Begin the text with the prompt; not together with logprobs."
    )
    best_of: int | None = Field(
        None, ge=1, description="Only as many as `n`: all that is generated is returned."
    )
    suffix: None = Field(None, description="Not supported: the model cannot fill in the middle.")

    def prompts(self) -> list[str | list[int]]:
        """Return the prompts one by one."""
        given = self.prompt
        if isinstance(given, str):
            return [given]
        if all(isinstance(item, int) for item in given):
            return [[item for item in given if isinstance(item, int)]]
        return [item for item in given if not isinstance(item, int)]


@router.post(COMPLETION.route, responses=COMPLETION_RESPONSES, response_class=Response)
async def create_completion(body: CompletionBody, request: Request) -> Response:
    """Continue one or many prompts."""
    return await answer_with(prepare_completion, COMPLETION, body, request)


def prepare_completion(
    service: Service, body: CompletionBody, mtp: MtpMode
) -> preparation.PreparedAnswer:
    """Turn a body into engine requests and writers."""
    prompts = body.prompts()
    _check(body, len(prompts))
    preparation.check_body(service, body, len(prompts))
    options = {"max_tokens": body.max_tokens or DEFAULT_MAX_TOKENS, "logprobs": body.logprobs}
    maker = preparation.RequestMaker(service, body, mtp, options)
    wanted = TokenDetails.of(body, logprobs=body.logprobs is not None)
    tokenizer = service.llm.tokenizer
    choices, writers, warnings = list[ChoiceRequest](), list[CompletionChoice](), body.warnings()
    for prompt in prompts:
        prompt_ids = _encode(service, prompt)
        warnings += preparation.room_warnings(service, body.max_tokens, len(prompt_ids))
        echo = _echo(service, prompt) if body.echo else ""
        for choice in maker.choices_for(PreparedPrompt(tuple(prompt_ids))):
            writers.append(CompletionChoice(len(choices), wanted, tokenizer, echo))
            choices.append(choice)
    return preparation.PreparedAnswer(choices, writers, len(prompts), warnings)


def _check(body: CompletionBody, num_prompts: int) -> None:
    if num_prompts > MAX_PROMPTS:
        message = f"prompt is a list of {num_prompts} prompts. It may have at most {MAX_PROMPTS}."
        raise bad_request(message, "prompt", "invalid_value")
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
        preparation.check_text(service, prompt, "prompt")
    try:
        prompt_ids = service.llm.encode(prompt)
    except TextError as error:
        raise bad_request(str(error), "prompt", "invalid_value") from error
    preparation.check_prompt(service, len(prompt_ids), "prompt")
    vocab_size = service.llm.engine.vocab_size
    unknown = [token_id for token_id in prompt_ids if token_id >= vocab_size]
    if unknown:
        message = f"prompt has the token id {unknown[0]}. Ids go from 0 to {vocab_size - 1}."
        raise bad_request(message, "prompt", "invalid_value")
    return prompt_ids


def _echo(service: Service, prompt: str | Sequence[int]) -> str:
    return prompt if isinstance(prompt, str) else service.llm.tokenizer.decode(prompt)


class CompletionChoice(ChoiceWriter):
    """Writes one continuation; log-probabilities come in four lists."""

    def __init__(
        self, index: int, wanted: TokenDetails, tokenizer: Tokenizer, echo: str = ""
    ) -> None:
        """Begin a choice; `echo` is text to put before it."""
        super().__init__(index, wanted, tokenizer)
        self._echo = echo
        self._spelled = Detokenizer(tokenizer, is_continuation=True)
        self._num_chars = 0

    def opening(self) -> dict[str, Any] | None:
        """Return the echo, if one was asked for."""
        return self._piece(self._echo) if self._echo else None

    def whole(self, chunks: Sequence[Chunk]) -> dict[str, Any]:
        """Return the whole choice."""
        self.finish_reason = str(chunks[-1].finish_reason)
        return self._piece(self._echo + self._read(chunks)) | self._details(chunks)

    def _read(self, chunks: Sequence[Chunk]) -> str:
        return "".join(chunk.text for chunk in chunks)

    def _piece(self, content: str | None = None) -> dict[str, Any]:
        return {
            "index": self._index,
            "text": content or "",
            "logprobs": None,
            "finish_reason": self.finish_reason,
        }

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        offsets = []
        for one in entries:
            offsets.append(self._num_chars)
            self._num_chars += len(self._spelled.push(one.token_id))
        return {
            "tokens": [self._tokenizer.token_text(one.token_id) for one in entries],
            "token_logprobs": [one.logprob for one in entries],
            "top_logprobs": [self._top(one) for one in entries],
            "text_offset": offsets,
        }

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        """Return alternatives by text, the chosen token among them; of equal texts the likelier."""
        top = {self._tokenizer.token_text(entry.token_id): entry.logprob}
        for other in entry.top:
            text = self._tokenizer.token_text(other.token_id)
            top[text] = max(other.logprob, top.get(text, other.logprob))
        return top
