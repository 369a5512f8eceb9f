"""Ollama: `/api/generate` in raw mode, text in, lines of JSON out.

Read in its documentation and sources (2026), not run. Its own engine leaves penalties and biases
out of account without a word, so they count as missing.
"""

from typing import Any

from headlong.decode.request import Request
from headlong.fleet.answer_parts import finish_reason
from headlong.fleet.dialect import AnswerReader, Call, Delta, Feature
from headlong.fleet.fields import read_event
from headlong.fleet.http_dialect import HttpDialect
from headlong.fleet.needs import is_greedy, plain_schema
from headlong.fleet.refusals import raise_failure
from headlong.fleet.text_side import TextSide
from headlong.text.tokenizer import Tokenizer


class OllamaDialect(HttpDialect):
    """How Ollama is asked."""

    name = "ollama"
    features = frozenset({Feature.SEED, Feature.TOP_K, Feature.MIN_P, Feature.JSON_SCHEMA})
    features_with_drafts = features
    health_path = "/api/version"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._text = TextSide(tokenizer)

    def write(self, request: Request, model: str) -> Call:
        """Return what to post; a prompt that does not fit is refused, not cut."""
        sampling = request.sampling
        options: dict[str, Any] = {
            "num_predict": request.stopping.max_tokens,
            "temperature": 0,
            "top_k": 0,
            "top_p": 1,
            "min_p": 0,
            "repeat_penalty": 1,
        }
        if not is_greedy(request):
            filters = {name: getattr(sampling, name) for name in ("top_k", "top_p", "min_p")}
            options |= {"temperature": sampling.temperature, "seed": sampling.seed % 2**31}
            options |= filters
        body: dict[str, Any] = {
            "model": model,
            "prompt": self._text.prompt(request),
            "raw": True,
            "stream": True,
            "truncate": False,
            "shift": False,
            "options": options,
        }
        schema = plain_schema(request)
        if schema is not None:
            body["format"] = schema
        return Call("/api/generate", body)

    def reader(self, request: Request) -> AnswerReader:
        """Return the reader of the answer to `request`."""
        return OllamaReader(self._text)


class OllamaReader:
    """Reads one streamed answer."""

    def __init__(self, text: TextSide) -> None:
        self._text = text

    def read(self, data: str) -> Delta:
        """Return what a line brings."""
        event = read_event(data)
        raise_failure(event)
        is_end = event.flag("done")
        return Delta(
            self._text.tokens(event.text("response")),
            finish_reason=finish_reason(event.text("done_reason") or "stop") if is_end else None,
            is_end=is_end,
        )
