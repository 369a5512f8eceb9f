"""`POST /v1/embeddings`: one vector for each text.

In:  OpenAI's request. Out: OpenAI's list of vectors of length 1. They are the mean of the model's
     last hidden rows, or the last of them: good enough to tell texts of different topics apart, not
     what a model trained for it gives.
"""

import base64
import struct
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field

from headlong.config import MtpMode
from headlong.decode.pooling import Pooling
from headlong.engine.request import RequestReport
from headlong.generation import Chunk
from headlong.prompt import PreparedPrompt
from headlong.server import preparation
from headlong.server.answer_format import AnswerFormat, Ending
from headlong.server.answer_stream import ChoiceRequest
from headlong.server.answering import answer_with
from headlong.server.call import Call, CallKind
from headlong.server.choices import Writer
from headlong.server.completions import (
    MAX_PROMPTS,
    NUM_PROMPTS,
    CompletionBody,
    TokenIdLists,
    TokenIds,
    encode_prompt,
)
from headlong.server.preparation import PreparedAnswer
from headlong.server.protocol import StopText
from headlong.server.refusal import bad_request
from headlong.server.response_schemas import EVENTS
from headlong.server.service import Service
from headlong.server.translation import OpenBody, inner_body

EMBEDDINGS = CallKind("embeddings", "/v1/embeddings", "embd", "list", "list")
OLLAMA_EMBED = CallKind("ollama_embed", "/api/embed", "embd", "list", "list")

router = APIRouter(tags=["embeddings"])


class EmbeddingsBody(OpenBody):
    """Texts to embed."""

    model: str | None = Field(None, description="A name that `/v1/models` lists, or `default`.")
    input: StopText | TokenIds | Annotated[list[StopText], NUM_PROMPTS] | TokenIdLists
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="base64: little-endian 32-bit floats. Default: float."
    )
    pooling: Pooling | None = Field(
        None, description="mean of all hidden rows, or the last one. Default: mean."
    )
    dimensions: None = Field(None, description="Not supported: these vectors cannot be cut.")
    user: str | None = Field(None, description="No effect here.")


class OllamaEmbedBody(OpenBody):
    """The same as Ollama asks."""

    model: str = Field(min_length=1, description="A name that `/api/tags` lists, or `default`.")
    input: StopText | Annotated[list[StopText], NUM_PROMPTS]
    pooling: Pooling | None = Field(None, description="Ours: mean, the default, or last.")


@router.post(EMBEDDINGS.route, responses=EVENTS, response_class=Response)
async def create_embeddings(body: EmbeddingsBody, request: Request) -> Response:
    """Return a vector for each input."""
    plain = inner_body(CompletionBody, {"model": body.model, "prompt": body.input})
    prepare = _prepare(body.pooling, body.open_warnings())
    is_base64 = body.encoding_format == "base64"
    make_format = partial(EmbeddingsFormat, is_base64=is_base64)
    return await answer_with(prepare, EMBEDDINGS, plain, request, make_format)


@router.post(OLLAMA_EMBED.route, responses=EVENTS, response_class=Response)
async def embed(body: OllamaEmbedBody, request: Request) -> Response:
    """Return a vector for each input, in Ollama's form."""
    name = body.model.removesuffix(":latest")
    plain = inner_body(CompletionBody, {"model": name, "prompt": body.input})
    prepare = _prepare(body.pooling, body.open_warnings())
    return await answer_with(prepare, OLLAMA_EMBED, plain, request, OllamaEmbedFormat)


def _prepare(pooling: Pooling | None, warnings: Sequence[str]) -> Any:
    return partial(prepare_embeddings, pooling=pooling or "mean", warnings=warnings)


def prepare_embeddings(
    service: Service,
    body: CompletionBody,
    mtp: MtpMode,
    *,
    pooling: Pooling,
    warnings: Sequence[str],
) -> PreparedAnswer:
    """Turn a body into engine requests of one token each, the prompt being what counts."""
    prompts = body.prompts()
    if len(prompts) > MAX_PROMPTS:
        message = f"input is a list of {len(prompts)} texts. It may have at most {MAX_PROMPTS}."
        raise bad_request(message, "input", "invalid_value")
    preparation.check_body(service, body, len(prompts))
    asked = {"pooling": pooling}
    maker = preparation.RequestMaker(service, body, "off", {"max_tokens": 1}, None, asked)
    choices, writers = list[ChoiceRequest](), list[EmbeddingWriter]()
    for prompt in prompts:
        prompt_ids = tuple(encode_prompt(service, body, prompt))
        choices += maker.choices_for(PreparedPrompt(prompt_ids))
        writers.append(EmbeddingWriter(len(writers)))
    return PreparedAnswer(choices, writers, len(prompts), warnings)


class EmbeddingWriter(Writer):
    """Writes one vector; never streamed."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self._index = index

    def whole(self, chunks: Sequence[Chunk], report: RequestReport | None = None) -> dict[str, Any]:
        """Return the vector."""
        self.finish_reason = "stop"
        assert report is not None, "a whole answer has a report"
        return {"object": "embedding", "index": self._index, "embedding": report.embedding}


class EmbeddingsFormat(AnswerFormat):
    """Writes OpenAI's list."""

    def __init__(self, call: Call, prepared: PreparedAnswer, *, is_base64: bool) -> None:
        """Begin an answer; `is_base64` packs vectors into 32-bit floats."""
        self._model_id = call.service.model_id
        self._is_base64 = is_base64

    def whole(self, choices: Sequence[Mapping[str, Any]], ending: Ending) -> Mapping[str, Any]:
        """Return the whole list."""
        num_tokens = ending.usage.prompt_tokens
        return {
            "object": "list",
            "data": [{**one, "embedding": self._packed(one["embedding"])} for one in choices],
            "model": self._model_id,
            "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
            **_warnings(ending),
        }

    def _packed(self, vector: Sequence[float]) -> str | Sequence[float]:
        if not self._is_base64:
            return vector
        return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


class OllamaEmbedFormat(AnswerFormat):
    """Writes Ollama's object."""

    def __init__(self, call: Call, prepared: PreparedAnswer) -> None:
        """Begin an answer."""
        self._model_id = call.service.model_id

    def whole(self, choices: Sequence[Mapping[str, Any]], ending: Ending) -> Mapping[str, Any]:
        """Return the whole object."""
        prompt_ns = int(1e6 * ending.telemetry["timings"]["prompt_ms"])
        return {
            "model": self._model_id,
            "embeddings": [one["embedding"] for one in choices],
            "total_duration": prompt_ns,
            "load_duration": 0,
            "prompt_eval_count": ending.usage.prompt_tokens,
            **_warnings(ending),
        }


def _warnings(ending: Ending) -> dict[str, Any]:
    told = ending.telemetry.get("warnings")
    return {"warnings": told} if told else {}
