"""The dialect: how one kind of engine is asked over HTTP, and how its answer is read.

In:  a `Request` of token ids. Out: the body to post, and `Delta`s out of the events that come back.
A dialect is pure: it opens no connection and keeps nothing between requests. Engines that know no
token ids get text, and their text becomes tokens here again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from headlong.decode.logprobs import TokenLogprob
from headlong.decode.request import Request
from headlong.decode.stats import DecodeStats
from headlong.engine.request import FinishReason
from headlong.errors import HeadlongError


class Feature(StrEnum):
    """What a request may need that not every engine has."""

    TOKEN_IDS = "token ids"
    """Takes and gives token ids; without it the front's tokenizer stands in."""
    LOGPROBS = "logprobs"
    PROMPT_LOGPROBS = "prompt logprobs"
    EMBEDDINGS = "embeddings"
    JSON_SCHEMA = "JSON schemas"
    GRAMMAR = "grammars (for tools, patterns and choices)"
    """llguidance's Lark: tool calls, reasoning before JSON, patterns, choices."""
    SEED = "seed"
    TOP_K = "top_k"
    MIN_P = "min_p"
    LOGIT_BIAS = "logit_bias"
    REPETITION_PENALTY = "repetition_penalty"
    PENALTIES = "presence_penalty and frequency_penalty"
    """Of the answer's own tokens; some engines count the prompt's too."""
    MIN_TOKENS = "min_tokens"
    IGNORE_EOS = "ignore_eos"
    CACHE_SALT = "cache_salt"
    DRAFT_STATS = "draft statistics"
    """Says for every answer what was drafted and accepted."""


@dataclass(frozen=True, slots=True)
class Call:
    """What is posted to an engine for one request."""

    path: str
    body: Mapping[str, Any]

    @property
    def is_whole(self) -> bool:
        """Whether the answer comes in one piece."""
        return not self.body.get("stream")


@dataclass(frozen=True, slots=True)
class Delta:
    """What one event of an engine's answer brings; most bring one or a few tokens."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    """One for each token, where they were asked for."""
    finish_reason: FinishReason | None = None
    """Why the answer ended, with its last tokens or behind them; then `is_end` follows."""
    stats: DecodeStats | None = None
    """What was drafted and accepted in the whole answer, where the engine says it."""
    num_cached_tokens: int | None = None
    """Prompt tokens from its prefix cache, where the engine says it."""
    prompt_logprobs: Mapping[int, TokenLogprob] | None = None
    is_end: bool = False
    """Nothing follows: an answer that breaks off before this was cut."""


class AnswerReader(Protocol):
    """Reads the events of one answer, in order."""

    def read(self, data: str) -> Delta:
        """Return what an event brings: the text behind `data:`, or one line of JSON.

        Raises:
            GarbledError: It is not what this kind of engine sends.
            HeadlongError: The engine says that it failed.
        """


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """What an engine says about itself; None where it does not say."""

    num_running: int | None = None
    num_waiting: int | None = None
    kv_share: float | None = None
    """Share of its cache memory in use."""
    num_drafted: int | None = None
    num_accepted: int | None = None
    """Draft tokens of all requests since it began."""


class Dialect(Protocol):
    """One kind of engine."""

    name: str
    """As `--engine` names it."""
    features: frozenset[Feature]
    features_with_drafts: frozenset[Feature]
    """Of these, what it still has while it speculates."""
    health_path: str
    """Answers 200 as soon as requests are taken."""
    metrics_path: str | None
    keeps_connections: bool
    """Whether a connection is of use behind an answer, as HTTP has it."""

    def missing(self, request: Request, *, with_drafts: bool) -> Feature | None:
        """Return what `request` needs and this engine lacks; None when it can run.

        A fixed K is no need: replicas draft as they were started, and the router knows how.
        """

    def write(self, request: Request, model: str) -> Call:
        """Return what to post; `model` is what the engine calls its model."""

    def reader(self, request: Request) -> AnswerReader:
        """Return the reader of the answer to `request`."""

    def tokenize(self, text: str, model: str) -> Call | None:
        """Return what asks for the `tokens` of a text; None where the engine has no such path."""

    def refusal(self, status: int, body: bytes, retry_after: str | None = None) -> HeadlongError:
        """Return an HTTP error as one of ours: RequestError, BusyError, or EngineError.

        Only a RequestError is the request's own fault; with others another replica may do better.
        `retry_after` is the header of that name.
        """

    def read_load(self, metrics: str) -> ReplicaLoad:
        """Return the load that a scrape of `metrics_path` tells."""
