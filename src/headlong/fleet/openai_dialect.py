"""Any engine with OpenAI's `/v1/completions`: text in, text out."""

from typing import Any

from headlong.decode.request import Request
from headlong.fleet.answer_parts import finish_reason
from headlong.fleet.dialect import AnswerReader, Call, Delta, Feature
from headlong.fleet.fields import garbled, read_event
from headlong.fleet.http_dialect import HttpDialect
from headlong.fleet.needs import is_greedy
from headlong.fleet.refusals import raise_failure
from headlong.fleet.text_side import TextSide
from headlong.text.tokenizer import Tokenizer


class OpenAIDialect(HttpDialect):
    """How engines are asked that speak OpenAI's API and no more."""

    name = "openai"
    features = frozenset({Feature.SEED, Feature.PENALTIES, Feature.LOGIT_BIAS})
    features_with_drafts = features
    health_path = "/v1/models"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._text = TextSide(tokenizer)

    def write(self, request: Request, model: str) -> Call:
        """Return what to post."""
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": model,
            "prompt": self._text.prompt(request),
            "max_tokens": request.stopping.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
        }
        if not is_greedy(request):
            body |= {"temperature": sampling.temperature, "top_p": sampling.top_p}
            body["seed"] = sampling.seed % 2**63
        if any(sampling.logit_bias.values()):
            body["logit_bias"] = {str(one): bias for one, bias in sampling.logit_bias.items()}
        return Call("/v1/completions", body)

    def reader(self, request: Request) -> AnswerReader:
        """Return the reader of the answer to `request`."""
        return OpenAIReader(self._text)


class OpenAIReader:
    """Reads one streamed answer."""

    def __init__(self, text: TextSide) -> None:
        self._text = text

    def read(self, data: str) -> Delta:
        """Return what an event brings."""
        if data == "[DONE]":
            return Delta(is_end=True)
        event = read_event(data)
        raise_failure(event)
        details = event.part("usage").part("prompt_tokens_details")
        cached = details.whole("cached_tokens")
        choices = event.parts("choices")
        if not choices:
            return Delta(num_cached_tokens=cached)
        if len(choices) > 1 or choices[0].whole("index"):
            raise garbled("choices", [one.whole("index") for one in choices], "one, of index 0")
        return Delta(
            self._text.tokens(choices[0].text("text")),
            finish_reason=finish_reason(choices[0].text("finish_reason")),
            num_cached_tokens=cached,
        )
