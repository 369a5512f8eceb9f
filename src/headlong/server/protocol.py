"""Request fields that chat and plain completions share: names, ranges, meanings.

In:  the parsed JSON of a body.
Out: a checked record; pydantic's errors become OpenAI's in `validation.py`. Unknown fields are
     refused. A field of OpenAI's that has no effect here is accepted, and named in `warnings`.
Ranges are those of `config.py`; this page is also where the OpenAPI document comes from.
"""

import json
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from headlong.config import MAX_DRAFT_TOKENS, MAX_TEMPERATURE

MAX_CHOICES = 16
"""The largest `n`."""

MAX_STOPS = 16

INERT = "No effect here"
"""How the description of a field begins that is accepted and does nothing."""

_AS_GIVEN = (
    "min_tokens", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "ignore_eos",
)  # fmt: skip
"""Fields that `llm.make_request` takes as they are."""

StopText: TypeAlias = Annotated[str, Field(min_length=1)]
TokenId: TypeAlias = Annotated[int, Field(ge=0)]
DraftTokens: TypeAlias = Annotated[int, Field(ge=0, le=MAX_DRAFT_TOKENS)]


class Body(BaseModel):
    """A record that takes exactly what it names: no other fields, no text for numbers, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


_GUIDES = {"regex": "pattern", "choice": "choices", "grammar": "grammar"}


def guided_format(kind: str, value: Any) -> dict[str, Any]:
    """Return one of vLLM's guides as a `response_format`."""
    if kind in _GUIDES:
        return {"type": kind, _GUIDES[kind]: value}
    if kind == "json_object":
        return {"type": "json_object"}
    schema = json.loads(value) if isinstance(value, str) else value
    if not isinstance(schema, dict):
        raise ValueError(f"guided_json is {value!r}. It must be a JSON schema, an object.")
    return {"type": "json_schema", "json_schema": {"name": "guided", "schema": schema}}


class StreamOptions(Body):
    """What a stream carries besides the answer."""

    include_usage: bool | None = Field(None, description="Send a last chunk with `usage`.")
    include_obfuscation: bool | None = Field(None, description="No effect here.")


class Speculative(Body):
    """llama.cpp's way to say how many tokens to draft, as an object."""

    n_max: DraftTokens = Field(description="Draft tokens per round; 0 turns drafting off.")


class DraftFields(Body):
    """How this request drafts; several ways to say it, which must agree."""

    mtp: Literal["auto", "off"] | Annotated[int, Field(ge=1, le=MAX_DRAFT_TOKENS)] | None = Field(
        None,
        description="Multi-token prediction: measured gain decides (auto), never (off), or always"
        " this many draft tokens. The text is the same with each. Default: the API key's, else the"
        " server's. The header `X-Headlong-MTP` says the same.",
    )
    num_speculative_tokens: DraftTokens | None = Field(
        None, description="vLLM's name: draft tokens per round; 0 turns drafting off."
    )
    speculative_n_max: DraftTokens | None = Field(
        None, alias="speculative.n_max", description="llama.cpp's name for the same."
    )
    speculative: Speculative | None = Field(None, description="The same, as an object.")


class StructuredOutputs(Body):
    """What an answer must look like, as vLLM says it."""

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    regex: Annotated[str, Field(min_length=1)] | None = None
    choice: Annotated[list[StopText], Field(min_length=1)] | None = None
    grammar: Annotated[str, Field(min_length=1)] | None = None
    json_object: bool | None = None


class GenerateBody(DraftFields):
    """Everything chat and plain completions share."""

    model: str | None = Field(
        None,
        description="A name that `/v1/models` lists, another that `headlong models` has for it, or"
        " `default`; may be left out, there is one model.",
    )
    stream: bool | None = Field(None, description="Send the answer as server-sent events.")
    stream_options: StreamOptions | None = Field(None, description="Only with `stream`.")
    n: int | None = Field(
        None, ge=1, le=MAX_CHOICES, description="Choices; the i-th uses seed + i. Default: 1."
    )
    stop: StopText | Annotated[list[StopText], Field(max_length=MAX_STOPS)] | None = Field(
        None, description="Strings to end before."
    )
    seed: int | None = Field(
        None,
        ge=-(2**63),
        le=2**63,
        description="Same seed, same text, whatever else the server does. Drawn when not given.",
    )
    temperature: float | None = Field(
        None,
        ge=0,
        le=MAX_TEMPERATURE,
        description="0 takes the most likely token. Default: 1, as OpenAI's.",
    )
    top_p: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Keep the likeliest tokens up to this sum; 0 keeps the best. Default: 1.",
    )
    top_k: int | None = Field(
        None, ge=-1, description="Keep the k likeliest tokens; 0 or -1 keeps all. Default: 0."
    )
    min_p: float | None = Field(
        None, ge=0, le=1, description="Keep tokens this likely against the best. Default: 0."
    )
    repetition_penalty: float | None = Field(
        None, ge=0.01, le=100, description="Divides logits of tokens seen before. Default: 1."
    )
    presence_penalty: float | None = Field(
        None, ge=-100, le=100, description="Subtracted for tokens of the answer. Default: 0."
    )
    frequency_penalty: float | None = Field(
        None, ge=-100, le=100, description="Subtracted per occurrence in the answer. Default: 0."
    )
    logit_bias: (
        dict[
            Annotated[str, Field(pattern=r"^\d{1,9}$")],
            Annotated[float, Field(ge=-100, le=100)],
        ]
        | None
    ) = Field(None, description="Added to the logits of these token ids.")
    min_tokens: int | None = Field(
        None,
        ge=0,
        description="The model cannot end its text before; stop strings can.",
    )
    guided_json: dict[str, Any] | str | None = Field(
        None, description="A JSON schema that the answer follows, as in vLLM."
    )
    guided_regex: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="A pattern that the whole answer follows."
    )
    guided_choice: Annotated[list[StopText], Field(min_length=1)] | None = Field(
        None, description="Texts of which the answer is one."
    )
    guided_grammar: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="A grammar in llama.cpp's (GBNF) or llguidance's notation."
    )
    structured_outputs: StructuredOutputs | None = Field(
        None, description="vLLM's newer form of the guided_ fields."
    )
    cache_prompt: bool | None = Field(
        None, description="false: neither use nor keep what has been run of prompts. Default: true."
    )
    ignore_eos: bool | None = Field(
        None, description="Go on past the model's own end, for measurements."
    )
    return_sources: bool | None = Field(
        None, description="Tell of each piece of text who proposed it: `choices[].sources`."
    )
    return_token_ids: bool | None = Field(
        None, description="Give the answer's token ids as well: `choices[].token_ids`."
    )
    cache_salt: str | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="Share the cache of prompts only with requests that say the same, as in vLLM.",
    )
    user: str | None = Field(None, description="No effect here.")

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def num_choices(self) -> int:
        """How many choices each prompt gets."""
        return self.n or 1

    def guided_format(self) -> dict[str, Any] | None:
        """Return what vLLM's fields ask for as a `response_format`; None where they are not given.

        Raises:
            ValueError: Several were given, or a schema is no JSON.
        """
        new = self.structured_outputs or StructuredOutputs.model_validate({})
        given: dict[str, list[Any]] = {
            "json": [self.guided_json, new.json_],
            "regex": [self.guided_regex, new.regex],
            "choice": [self.guided_choice, new.choice],
            "grammar": [self.guided_grammar, new.grammar],
            "json_object": [new.json_object or None],
        }
        found = [(kind, one) for kind, those in given.items() for one in those if one is not None]
        if len(found) > 1:
            kinds = " and ".join(kind for kind, _ in found)
            raise ValueError(f"The answer is guided in several ways, by {kinds}. Keep one.")
        return guided_format(*found[0]) if found else None

    def warnings(self) -> list[str]:
        """Say which of the given fields do nothing."""
        given = [
            name
            for name, field in type(self).model_fields.items()
            if (field.description or "").startswith(INERT) and getattr(self, name) is not None
        ]
        if self.stream_options and self.stream_options.include_obfuscation is not None:
            given.append("stream_options.include_obfuscation")
        return [f"{name} has no effect here." for name in given]

    def sampling_options(self) -> dict[str, Any]:
        """Return what `llm.make_request` takes, as far as both kinds of request share it."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop
        bias = self.logit_bias or {}
        return {
            "temperature": 1.0 if self.temperature is None else self.temperature,
            "top_k": None if self.top_k is None else max(0, self.top_k),
            "logit_bias": {int(token_id): amount for token_id, amount in bias.items()},
            "stop": tuple(stop or ()),
            **{name: getattr(self, name) for name in _AS_GIVEN},
        }
