"""Fleets over scripted engines: real sockets, nobody's weights."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from headlong.config import MtpMode, StopParams
from headlong.decode.request import Request
from headlong.engine.limits import EngineLimits
from headlong.fleet.client import FleetEngine, FleetModel
from headlong.fleet.dialects import make_dialect
from headlong.fleet.exchange import Patience
from headlong.fleet.fleet import Fleet, FleetOptions
from headlong.fleet.probing import ProbeOptions
from headlong.fleet.replica import Replica
from headlong.fleet.stream import FleetStream
from http_engine import HttpEngine
from tiny_text import byte_level_tokenizer

EOS = 2
MODEL = FleetModel(4096, vocab_size=266, tokenizer=byte_level_tokenizer())
REQUEST = Request((5, 6, 7), stopping=StopParams(max_tokens=12), eos_ids=frozenset({EOS}))

_DEADLINE_S = 20.0


def request(*prompt_ids: int, mtp: MtpMode = "auto", **changes: Any) -> Request:
    """Return a request for twelve tokens, changed."""
    return replace(REQUEST, prompt_ids=prompt_ids or REQUEST.prompt_ids, mtp=mtp, **changes)


@contextmanager
def run_fleet(
    *engines: HttpEngine,
    next_token_s: float = 30.0,
    model_name: str | None = None,
    start_s: float = 10.0,
    limits: EngineLimits | None = None,
) -> Iterator[FleetEngine]:
    """Run a fleet over these engines; those with drafts are trusted unprobed."""
    replicas = [
        Replica(one.url, make_dialect(one.dialect, MODEL.tokenizer), one.num_spec_tokens)
        for one in engines
    ]
    patience = Patience(next_token_s, next_token_s)
    untested = ProbeOptions(every_s=None)
    options = FleetOptions(model_name, patience, untested, start_s)
    with Fleet(replicas, MODEL, limits or EngineLimits(), options) as fleet:
        yield fleet.engine


def step_until_done(engine: FleetEngine, *streams: FleetStream) -> None:
    """Step until all have ended."""
    deadline_s = time.monotonic() + _DEADLINE_S
    while any(stream.finish_reason is None for stream in streams):
        assert time.monotonic() < deadline_s, "a request never ended"
        engine.step()


def answers(engine: FleetEngine, *requests: Request) -> list[tuple[int, ...]]:
    """Run requests at once and return their tokens."""
    streams = [engine.submit(one) for one in requests]
    step_until_done(engine, *streams)
    return [tuple(one.pick.token_id for one in stream.take()) for stream in streams]


def expected(engine: HttpEngine, one: Request) -> tuple[int, ...]:
    """Return what an engine says to a greedy request."""
    return engine.model.answer(one.prompt_ids, one.stopping.max_tokens, one.eos_ids)
