"""A hybrid in the engine: states are forked only where a snapshot lies; the text is the same."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from headlong.cache.sequence_state import MAX_SNAPSHOTS, SNAPSHOT_STEP
from headlong.config import MtpMode, SamplingParams, StopParams
from headlong.decode.memory import CacheMemory
from headlong.decode.request import Request
from headlong.drafters.drafter import Drafter
from headlong.engine.engine import Engine
from headlong.engine.limits import EngineLimits
from headlong.engine.request import Running
from headlong.models.transformer import Backbone
from headlong.ops.blocks import GatedDeltaNet, Mamba2
from model_files import HYBRIDS
from random_drafters import drafter_named

SYSTEM = tuple(20 + i % 60 for i in range(50))


@pytest.fixture(params=HYBRIDS)
def backbone(tiny_backbone: Callable[[str], Backbone], request: pytest.FixtureRequest) -> Backbone:
    """A tiny hybrid."""
    return tiny_backbone(request.param)


@pytest.fixture(params=["chain-eagle3", "draft-model"])
def drafter(backbone: Backbone, request: pytest.FixtureRequest) -> Drafter:
    """A chain with a random head, and a hybrid as draft model."""
    return drafter_named(request.param, backbone)


def ask(
    *tail: int, mtp: MtpMode = 2, max_tokens: int = 6, system: tuple[int, ...] = SYSTEM
) -> Request:
    """Return a request that begins with the system prompt."""
    sampling = SamplingParams(temperature=0.7, seed=len(tail))
    return Request((*system, *tail), sampling, StopParams(max_tokens=max_tokens), mtp)


def finish(engine: Engine, *requests: Request) -> list[Running]:
    """Submit requests at once and run them to their ends."""
    running = [engine.submit(request) for request in requests]
    while any(one.finish_reason is None for one in running):
        engine.step()
    return running


def ids(running: Running) -> list[int]:
    """Return the token ids a request was handed."""
    return [emitted.pick.token_id for emitted in running.outbox]


def alone(backbone: Backbone, request: Request) -> list[int]:
    """Return what a request gets from an engine that has seen nothing else and never drafts."""
    return ids(finish(Engine.for_model(backbone), request)[0])


def test_second_turn_takes_the_first_ones_state_over(backbone: Backbone, drafter: Drafter) -> None:
    engine = Engine.for_model(backbone, drafter)
    (first,) = finish(engine, ask(1, 2, 3))
    history = (*first.request.prompt_ids, *ids(first))
    second_turn = Request((*history, 7, 8, 9), stopping=StopParams(max_tokens=9), mtp=2)
    (second,) = finish(engine, second_turn)
    assert second.sequence.num_cached_tokens == len(history) - 1
    assert ids(second) == alone(backbone, second_turn)
    assert engine.snapshot().prefix_entries == 1


def test_same_prompt_many_times_runs_once(backbone: Backbone, drafter: Drafter) -> None:
    engine = Engine.for_model(backbone, drafter)
    running = finish(engine, *[ask(1, 2, 3, mtp=mtp) for mtp in (2, "auto", 3, "off")])
    assert [one.sequence.num_cached_tokens for one in running] == [0, 52, 52, 52]
    assert {tuple(ids(one)) for one in running} == {tuple(alone(backbone, ask(1, 2, 3)))}


def test_beginning_that_two_prompts_share_is_kept_for_the_third(
    backbone: Backbone, drafter: Drafter
) -> None:
    engine = Engine.for_model(backbone, drafter)
    requests = [ask(1, 2, 3), ask(4, 5), ask(6), ask(7, 8, 9, 10)]
    running = [finish(engine, request)[0] for request in requests]
    cached = [one.sequence.num_cached_tokens for one in running]
    assert cached == [0, 0, len(SYSTEM) - 1, len(SYSTEM) - 1]
    assert [ids(one) for one in running] == [alone(backbone, request) for request in requests]


@pytest.mark.parametrize("num_rows_per_step", [7, 64, 256])
def test_prompt_that_ends_otherwise_shares_the_last_whole_step(
    backbone: Backbone, drafter: Drafter, num_rows_per_step: int
) -> None:
    """However the prompt was cut into chunks."""
    limits = EngineLimits(prefill_rows_per_step=num_rows_per_step)
    engine = Engine.for_model(backbone, drafter, limits)
    system = tuple(5 + i % 80 for i in range(2 * SNAPSHOT_STEP + 9))
    finish(engine, ask(1, 2, system=system))
    (second,) = finish(engine, ask(3, 4, system=system))
    assert second.sequence.num_cached_tokens == 2 * SNAPSHOT_STEP
    assert ids(second) == alone(backbone, ask(3, 4, system=system))


def test_short_memory_sets_the_newest_back(
    backbone: Backbone, drafter: Drafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four can begin, but not all of them have room to go on to their ends."""
    monkeypatch.setattr("headlong.decode.memory.ROOM_AHEAD", 8)
    limit = 4 * CacheMemory(backbone, drafter, None, 0).bytes_for(53 + 8, drafts=True)
    engine = Engine.for_model(backbone, drafter, EngineLimits(kv_bytes=limit, prefix_bytes=0))
    requests = [ask(i, i + 1, i + 2, max_tokens=110, mtp=i % 3 or "auto") for i in range(4)]
    running = [engine.submit(request) for request in requests]
    while any(one.finish_reason is None for one in running):
        engine.step()
    assert engine.snapshot().num_preemptions > 0
    for request, one in zip(requests, running, strict=True):
        assert ids(one) == alone(backbone, request)


def test_state_and_snapshots_are_counted(backbone: Backbone) -> None:
    memory = CacheMemory(backbone, None, None, 0)
    mixers = [layer.mixer for layer in backbone.layers]
    recurrent = [mixer for mixer in mixers if isinstance(mixer, GatedDeltaNet | Mamba2)]
    num_floats = sum(math.prod(mixer.memory_shape) for mixer in recurrent)
    least = num_floats * (1 + MAX_SNAPSHOTS) * np.float32().itemsize
    assert memory.bytes_for(1, drafts=False) > least > 0
