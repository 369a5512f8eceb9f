"""Needs: what a request asks of an engine, by what its parameters say.

A parameter that does nothing needs nothing: filters of a greedy answer, a bias for no token. What
is not listed every engine has: temperature, top_p, max_tokens. Stop strings are the front's own.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from headlong.decode.request import Request
from headlong.fleet.dialect import Feature


def first_missing(request: Request, features: frozenset[Feature]) -> Feature | None:
    """Return what `request` needs beyond `features`."""
    return next((one for one in _needs(request) if one not in features), None)


def is_greedy(request: Request) -> bool:
    """Tell whether the best token is always picked."""
    return request.sampling.temperature == 0 or request.sampling.top_p == 0


def is_json_schema(request: Request) -> bool:
    """Tell whether the answer is held to a JSON schema, and to nothing else."""
    return request.grammar is not None and request.grammar.source.startswith("{")


def plain_schema(request: Request) -> Mapping[str, Any] | None:
    """Return the JSON schema of an answer without our way of writing it; None where it has none."""
    if request.grammar is None or not is_json_schema(request):
        return None
    schema: dict[str, Any] = json.loads(request.grammar.source)
    return {name: value for name, value in schema.items() if name != "x-guidance"}


def held_tokens(request: Request) -> int:
    """Return before how many tokens the text may not end; a grammar may always end it."""
    if request.grammar is not None or not request.eos_ids:
        return 0
    return min(request.sampling.min_tokens, request.stopping.max_tokens)


def _needs(request: Request) -> Iterator[Feature]:
    sampling = request.sampling
    if request.pooling is not None:
        yield Feature.EMBEDDINGS
    if request.prompt_logprobs is not None:
        yield Feature.PROMPT_LOGPROBS
    if sampling.logprobs is not None:
        yield Feature.LOGPROBS
    if request.grammar is not None:
        yield Feature.JSON_SCHEMA if is_json_schema(request) else Feature.GRAMMAR
    if not is_greedy(request):
        yield Feature.SEED
        if sampling.top_k:
            yield Feature.TOP_K
        if sampling.min_p:
            yield Feature.MIN_P
    if any(sampling.logit_bias.values()):
        yield Feature.LOGIT_BIAS
    if sampling.repetition_penalty != 1:
        yield Feature.REPETITION_PENALTY
    if sampling.presence_penalty or sampling.frequency_penalty:
        yield Feature.PENALTIES
    if held_tokens(request):
        yield Feature.MIN_TOKENS
    if request.stopping.ignore_eos:
        yield Feature.IGNORE_EOS
    if request.cache_salt:
        yield Feature.CACHE_SALT
