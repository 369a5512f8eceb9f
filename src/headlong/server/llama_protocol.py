"""What llama.cpp's `/completion` and `/infill` take, and the completion each amounts to.

In:  the parsed JSON of a body. Out: a `CompletionBody`. Sampling that is not given is llama.cpp's
     usual one.
"""

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import Field

from headlong.config import MAX_TEMPERATURE
from headlong.server.completions import CompletionBody, ExtraFile
from headlong.server.protocol import StopText, TokenId
from headlong.server.refusal import bad_request
from headlong.server.translation import OpenBody, inner_body
from headlong.text.tokenizer import Tokenizer

DEFAULTS: Mapping[str, float] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}


Bias: TypeAlias = Annotated[list[float], Field(min_length=2, max_length=2)]


class LlamaFields(OpenBody):
    """What both routes share."""

    model: str | None = Field(None, description="May be left out, there is one model.")
    n_predict: int | None = Field(
        None, ge=-1, description="New tokens at most; -1, the default: what the context has left."
    )
    max_tokens: int | None = Field(None, ge=-1, description="Another name of n_predict.")
    stream: bool | None = Field(None, description="Send the answer as server-sent events.")
    stop: Annotated[list[StopText], Field(max_length=16)] | None = None
    seed: int | None = Field(None, description="-1: a new one.")
    temperature: float | None = Field(None, le=MAX_TEMPERATURE, description="Default: 0.8.")
    top_k: int | None = Field(None, ge=-1, description="Default: 40.")
    top_p: float | None = Field(None, ge=0, le=1, description="Default: 0.95.")
    min_p: float | None = Field(None, ge=0, le=1, description="Default: 0.05.")
    repeat_penalty: float | None = Field(None, ge=0.01, le=100, description="Default: 1.")
    presence_penalty: float | None = Field(None, ge=-100, le=100)
    frequency_penalty: float | None = Field(None, ge=-100, le=100)
    logit_bias: list[Bias] | None = Field(None, description="[token id, amount] each.")
    ignore_eos: bool | None = None
    cache_prompt: bool | None = None
    return_tokens: bool | None = Field(None, description="Give the token ids as well.")
    grammar: str | None = Field(None, description="A grammar that the answer follows.")
    json_schema: dict[str, Any] | None = Field(None, description="A schema that it follows.")

    def completion_fields(self) -> dict[str, Any]:
        """Return what a completion has besides its prompt."""
        penalties = ("presence_penalty", "frequency_penalty")
        sampling = ("top_k", "top_p", "min_p", "ignore_eos", *penalties)
        same = ("model", "stream", "cache_prompt", *sampling)
        given = {name: getattr(self, name) for name in same if getattr(self, name) is not None}
        most = self.n_predict if self.n_predict is not None else self.max_tokens
        if most == 0:
            message = "n_predict is 0. Ask for one token at least."
            raise bad_request(message, "n_predict", "invalid_value")
        temperature = self.temperature
        return {
            **DEFAULTS,
            **given,
            **({} if temperature is None else {"temperature": max(0.0, temperature)}),
            "max_tokens": -1 if most is None else most,
            "stop": self.stop or None,
            "seed": None if self.seed == -1 else self.seed,
            "repetition_penalty": self.repeat_penalty,
            "logit_bias": {str(int(one)): x for one, x in self.logit_bias or ()} or None,
            "return_token_ids": self.return_tokens or self.stream,
            "guided_grammar": self.grammar or None,
            "guided_json": self.json_schema,
            **self.draft_fields(),
        }


class LlamaBody(LlamaFields):
    """A completion."""

    prompt: str | Annotated[list[str | TokenId], Field(min_length=1)] = Field(
        description="A text, token ids, or both mixed."
    )

    def to_completion(self, tokenizer: Tokenizer) -> CompletionBody:
        """Return the completion this amounts to."""
        prompt: Any = self.prompt
        if isinstance(prompt, list):
            ids: list[int] = []
            for part in prompt:
                is_text = isinstance(part, str)
                ids += tokenizer.encode(part, add_special=not ids) if is_text else [part]
            prompt = ids
        return inner_body(CompletionBody, self.completion_fields() | {"prompt": prompt})


class InfillBody(LlamaFields):
    """A gap to fill in."""

    input_prefix: str
    input_suffix: str
    input_extra: list[ExtraFile] | None = Field(None, description="Files it should fit.")
    prompt: str | None = Field(None, description="How the middle begins.")

    def to_completion(self) -> CompletionBody:
        """Return the completion this amounts to."""
        extra = [one.model_dump() for one in self.input_extra or ()]
        fields = {
            "prompt": self.input_prefix + (self.prompt or ""),
            "suffix": self.input_suffix,
            "input_extra": extra or None,
        }
        return inner_body(CompletionBody, self.completion_fields() | fields)
