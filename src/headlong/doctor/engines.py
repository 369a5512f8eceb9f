"""Engines in other processes, examined by hand: does the one that drafts write what the other does?

In:  two addresses and the files of their model. Out: the verdict of the same probe that a server
runs before it sends requests, and each of its judgements as a finding.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headlong.doctor.finding import Check, Finding, skipped
from headlong.errors import EngineDownError, RequestError
from headlong.fleet.dialects import make_dialect
from headlong.fleet.exchange import Exchanger, make_http
from headlong.fleet.health import Health
from headlong.fleet.probing import ProbeOptions, Probing
from headlong.fleet.replica import Replica, ReplicaState, base_url
from headlong.fleet.verdict import Aspect, Judgement, Outcome, Verdict
from headlong.models.model_config import read_config
from headlong.text.tokenizer import load_tokenizer
from headlong.weights.checkpoint import open_checkpoint

_ALL = "`headlong serve` sends no request to this engine, whatever it asks for"
_GREEDY_ONLY = "`headlong serve` sends it greedy requests only"
_REMEDIES = {
    Aspect.GREEDY: _ALL,
    Aspect.LENGTH: _ALL,
    Aspect.STOP: _ALL,
    Aspect.SAMPLED: _GREEDY_ONLY,
    Aspect.MIXED: _GREEDY_ONLY,
    Aspect.JSON: "`headlong serve` sends it no request with a JSON schema",
    Aspect.GRAMMAR: "`headlong serve` sends it no request with tools, a pattern or a grammar",
    Aspect.LOGPROBS: "`headlong serve` sends it no request with logprobs",
}
"""What follows from a failure."""

_ELSE = "See the engine's log"
_NOT_EXACT = {
    Aspect.GREEDY: "Rounding can do that. Start both engines with float32 if texts must be equal",
    Aspect.MIXED: "Rounding can do that. Start both engines with float32 if texts must be equal",
    Aspect.LOGPROBS: "Rounding can do that. Start both engines with float32 if they must be equal",
    Aspect.SEED: "Do not count on seeds while this engine drafts",
}


@dataclass(frozen=True, slots=True)
class EnginePair:
    """What is examined."""

    drafting_url: str
    plain_url: str | None
    """None where there is no engine to compare with."""
    kind: str
    model_path: Path
    model_name: str | None = None
    """What the engines call it, where they have several."""
    api_key: str | None = None


def examine_engines(
    pair: EnginePair, options: ProbeOptions, tell: Callable[[Finding], None]
) -> Verdict:
    """Probe the engine that drafts, telling each finding as it comes.

    Raises:
        EngineDownError: One of them does not answer.
    """
    # What the log says of a probe is told here in a better form.
    logging.getLogger("headlong.fleet").addHandler(logging.NullHandler())
    return asyncio.run(_examine(pair, options, tell))


async def _examine(
    pair: EnginePair, options: ProbeOptions, tell: Callable[[Finding], None]
) -> Verdict:
    checkpoint = open_checkpoint(pair.model_path)
    tokenizer, config = load_tokenizer(checkpoint), read_config(checkpoint)
    dialect = make_dialect(pair.kind, tokenizer)
    drafting = Replica(base_url(pair.drafting_url), dialect, 1, pair.api_key)
    replicas = [drafting]
    if pair.plain_url is not None:
        plain = Replica(base_url(pair.plain_url), dialect, 0, pair.api_key)
        if plain.url == drafting.url:
            problem = f"Both engines are the one at {plain.url}."
            raise RequestError(problem, "Compare it with another, which does not draft.")
        replicas.append(plain)
    async with make_http() as http:
        health = Health(replicas, http, tokenizer, pair.model_name)
        for replica in replicas:
            await health.check(replica)
            if replica.state is not ReplicaState.UP:
                problem = replica.problem or f"The engine at {replica.url} is not up."
                raise EngineDownError(problem, "Check its address, and that it has started.")
        probing = Probing(replicas, Exchanger(http, config.vocab_size), tokenizer, options)
        verdict = await probing.examine(drafting, lambda judgement: tell(finding_of(judgement)))
    if verdict is None:
        raise EngineDownError("The engine went down while it was probed.", "See its log.")
    return verdict


def finding_of(judgement: Judgement) -> Finding:
    """Return a judgement as a finding of the doctor."""
    aspect, check = judgement.aspect, Check(judgement.aspect.value, judgement.numbers)
    match judgement.outcome:
        case Outcome.PASSED:
            return check.ok(judgement.seen)
        case Outcome.NOT_EXACT:
            return check.warning(f"not exact: {judgement.seen}", f"{_NOT_EXACT[aspect]}.")
        case Outcome.FAILED:
            return check.fault(judgement.seen, f"{_REMEDIES.get(aspect, _ELSE)}.")
        case Outcome.NOT_CHECKED | Outcome.NOT_SETTLED:
            return skipped(check.name, judgement.seen)
