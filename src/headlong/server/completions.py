"""`POST /v1/completions`: text goes on where the prompt ends.

In:  OpenAI's request: one or many prompts, as text or token ids.
Out: OpenAI's answer, streamed or whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field

from headlong.config import MtpMode
from headlong.decode.sampling import TokenLogprob
from headlong.engine.request import RequestReport
from headlong.errors import TextError
from headlong.generation import Chunk
from headlong.prompt import PreparedPrompt
from headlong.server import preparation
from headlong.server.answer_stream import ChoiceRequest
from headlong.server.answering import answer_with
from headlong.server.call import COMPLETION
from headlong.server.choices import ChoiceWriter, TokenDetails
from headlong.server.protocol import Body, GenerateBody, TokenId
from headlong.server.refusal import bad_request
from headlong.server.response_schemas import COMPLETION_RESPONSES
from headlong.server.service import Service
from headlong.text.detokenizer import Detokenizer
from headlong.text.infill import InfillTokens, OtherFile, infill_ids
from headlong.text.tokenizer import Tokenizer

MAX_LOGPROBS = 20
MAX_PROMPTS = 64
DEFAULT_MAX_TOKENS = 16
"""OpenAI's, for this route only."""

router = APIRouter(tags=["completions"])


TokenIds = Annotated[list[TokenId], Field(min_length=1)]
# `_check` counts them: pydantic would complain of whichever kind of list was not meant.
NUM_PROMPTS: Any = Field(min_length=1, json_schema_extra={"maxItems": MAX_PROMPTS})
Texts = Annotated[list[str], NUM_PROMPTS]
TokenIdLists = Annotated[list[TokenIds], NUM_PROMPTS]


class ExtraFile(Body):
    """A file that the model should know of."""

    text: str
    filename: str = "tmp"


class CompletionBody(GenerateBody):
    """A plain completion request: the text goes on where the prompt ends."""

    prompt: str | TokenIds | Texts | TokenIdLists
    max_tokens: Literal[-1] | Annotated[int, Field(ge=1)] | None = Field(
        None, description="New tokens at most; -1: what the context has left. Default: 16."
    )
    logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_LOGPROBS,
        description="Give each token's log-probability, with so many alternatives.",
    )
    echo: bool | None = Field(
        None,
        description="Begin the text with the prompt; with logprobs it has those as well (not"
        " streamed).",
    )
    best_of: int | None = Field(
        None, ge=1, description="Only as many as `n`: all that is generated is returned."
    )
    suffix: str | None = Field(
        None, description="Fill in what belongs before this text, if the model was trained to."
    )
    input_extra: list[ExtraFile] | None = Field(
        None, description="llama.cpp's: files that the gap should fit; only with suffix."
    )

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
    service: Service, body: CompletionBody, mtp: MtpMode, warnings: Sequence[str] = ()
) -> preparation.PreparedAnswer:
    """Turn a body into engine requests and writers; `warnings` are added to its own."""
    prompts = body.prompts()
    _check(body, len(prompts))
    preparation.check_body(service, body, len(prompts))
    most = body.max_tokens or DEFAULT_MAX_TOKENS
    options = {"max_tokens": None if most < 0 else most, "logprobs": body.logprobs}
    form = preparation.read_answer_constraint(body, {})
    grammar = form.make_grammar(service.model.tokenizer)
    asked: dict[str, Any] = {"prompt_logprobs": body.logprobs if body.echo else None}
    if body.suffix is not None:
        asked["eos_ids"] = service.model.tokenizer.eos_ids | _infill_tokens(service).end_ids
    maker = preparation.RequestMaker(service, body, mtp, options, grammar, asked)
    wanted = TokenDetails.of(body, logprobs=body.logprobs is not None)
    tokenizer = service.model.tokenizer
    choices, writers = list[ChoiceRequest](), list[CompletionChoice]()
    warnings = [*warnings, *body.warnings()]
    for prompt in prompts:
        prompt_ids = encode_prompt(service, body, prompt)
        warnings += preparation.room_warnings(service, body.max_tokens, len(prompt_ids))
        echo = Echo(_echoed_text(service, prompt), prompt_ids) if body.echo else None
        for choice in maker.choices_for(PreparedPrompt(tuple(prompt_ids))):
            writers.append(CompletionChoice(len(choices), wanted, tokenizer, echo))
            choices.append(choice)
    return preparation.PreparedAnswer(choices, writers, len(prompts), warnings)


def _check(body: CompletionBody, num_prompts: int) -> None:
    if body.suffix is not None and not all(isinstance(one, str) for one in body.prompts()):
        message = "suffix was given with token ids. Give the prompt as text."
        raise bad_request(message, "suffix", "invalid_value")
    if body.input_extra and body.suffix is None:
        message = "input_extra was given without suffix. Leave it out."
        raise bad_request(message, "input_extra", "invalid_value")
    if num_prompts > MAX_PROMPTS:
        message = f"prompt is a list of {num_prompts} prompts. It may have at most {MAX_PROMPTS}."
        raise bad_request(message, "prompt", "invalid_value")
    if body.best_of is not None and body.best_of != body.num_choices:
        message = (
            f"best_of is {body.best_of}, n is {body.num_choices}. This server returns all it"
            " generates: leave best_of out, or set it to n."
        )
        raise bad_request(message, "best_of", "invalid_value")
    if body.echo and body.logprobs is not None and body.stream:
        message = "echo and logprobs were given with stream. Leave one of the three out."
        raise bad_request(message, "echo", "invalid_value")


def _infill_tokens(service: Service) -> InfillTokens:
    tokens = service.model.tokenizer.infill_tokens
    if tokens is None:
        message = "suffix was given, but the model has no tokens to fill in the middle with."
        raise bad_request(message, "suffix", "invalid_value")
    return tokens


def _encode_gap(service: Service, body: CompletionBody, before: str) -> Sequence[int]:
    """Return the prompt of a gap between `before` and the suffix."""
    others = [OtherFile(one.text, one.filename) for one in body.input_extra or ()]
    tokenizer = service.model.tokenizer
    encode = partial(tokenizer.encode, add_special=False, parse_special=False)
    sides = (before, body.suffix or "")
    ids = infill_ids(_infill_tokens(service), sides, others, encode)
    return [*tokenizer.encode(""), *ids]  # what every prompt begins with


def encode_prompt(
    service: Service, body: CompletionBody, prompt: str | Sequence[int]
) -> Sequence[int]:
    """Return the token ids of a prompt; refuse one that is empty, too long, or names no tokens."""
    if isinstance(prompt, str):
        preparation.check_text(service, prompt, "prompt")
    try:
        if not isinstance(prompt, str):
            prompt_ids = prompt
        elif body.suffix is not None:
            prompt_ids = _encode_gap(service, body, prompt)
        else:
            prompt_ids = service.model.tokenizer.encode(prompt)
    except TextError as error:
        raise bad_request(str(error), "prompt", "invalid_value") from error
    preparation.check_prompt(service, len(prompt_ids), "prompt")
    vocab_size = service.model.engine.vocab_size
    unknown = [token_id for token_id in prompt_ids if token_id >= vocab_size]
    if unknown:
        message = f"prompt has the token id {unknown[0]}. Ids go from 0 to {vocab_size - 1}."
        raise bad_request(message, "prompt", "invalid_value")
    return prompt_ids


def _echoed_text(service: Service, prompt: str | Sequence[int]) -> str:
    return prompt if isinstance(prompt, str) else service.model.tokenizer.decode(prompt)


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt to be given back before its answer."""

    text: str = ""
    token_ids: Sequence[int] = ()


class CompletionChoice(ChoiceWriter):
    """Writes one continuation; log-probabilities come in four lists."""

    def __init__(
        self, index: int, wanted: TokenDetails, tokenizer: Tokenizer, echo: Echo | None = None
    ) -> None:
        """Begin a choice; `echo` is put before it."""
        super().__init__(index, wanted, tokenizer)
        self._echo = echo
        self._spelled = Detokenizer(tokenizer, is_continuation=True)
        self._num_chars = 0

    def opening(self) -> dict[str, Any] | None:
        """Return the echo, if one was asked for."""
        return self._piece(self._echo.text) if self._echo else None

    def whole(self, chunks: Sequence[Chunk], report: RequestReport | None = None) -> dict[str, Any]:
        """Return the whole choice."""
        self.finish_reason = str(chunks[-1].finish_reason)
        echo = "" if self._echo is None else self._echo.text
        whole = self._piece(echo + self._read(chunks)) | self._details(chunks)
        whole |= self._stopped(chunks)
        if self._echo is not None and self._wanted.logprobs and report is not None:
            whole["logprobs"] = self._echoed_logprobs(chunks, report.prompt_logprobs)
        return whole

    def _echoed_logprobs(
        self, chunks: Sequence[Chunk], known: Mapping[int, TokenLogprob]
    ) -> dict[str, Any]:
        """Return an entry for every token of prompt and answer; nothing comes before the first."""
        assert self._echo is not None
        self._spelled, self._num_chars = Detokenizer(self._tokenizer, skip_special=False), 0
        first = TokenLogprob(self._echo.token_ids[0], 0.0, ())
        entries = [known.get(place, first) for place in range(len(self._echo.token_ids))]
        entries += [chunk.logprob for chunk in chunks if chunk.logprob is not None]
        found = self._logprobs(entries)
        found["token_logprobs"][0] = found["top_logprobs"][0] = None
        return found

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
