"""Exactness of the device runner: the tokens are the same, bit for bit, with MTP on or off.

In plain torch on the CPU, with the tiny models; the rounds are those that a GPU replays. The oracle
is the step runner over the same op set: on the CPU both compute the same bits.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from headlong.config import MtpMode, SamplingParams, StopParams
from headlong.decode.request import Request
from headlong.decode.step_runner import StepRunner
from headlong.engine.engine import Engine
from headlong.engine.limits import EngineLimits
from headlong.engine.request import FinishReason, Running
from headlong.heads.head_weights import HeadKind
from headlong.models.transformer import Backbone
from model_files import ARCHITECTURES

torch = pytest.importorskip("torch")
from device_engines import (  # noqa: E402  # needs torch
    device_drafters,
    device_engine,
    page_bytes,
    run_all,
    tiny_on_device,
    token_ids,
)

torch.set_num_threads(1)
KINDS: tuple[HeadKind, ...] = ("nextn", "eagle3")
MODES: tuple[MtpMode, ...] = ("off", 1, 2, 3, 4, 5, 6, 7, 8, "auto")


@pytest.fixture(scope="module", params=ARCHITECTURES)
def backbone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    """A tiny random model whose blocks are those of a GPU."""
    return tiny_on_device(tmp_path_factory.mktemp("model"), request.param)


def draw_request(rng: random.Random, vocab_size: int) -> Request:
    """Draw a prompt and a way to sample."""
    sampling = SamplingParams(
        temperature=rng.choice([0.0, 0.0, 0.3, 0.7, 1.0]),
        top_k=rng.choice([0, 0, 0, 8]),
        top_p=rng.choice([1.0, 1.0, 0.8]),
        min_p=rng.choice([0.0, 0.0, 0.05]),
        seed=rng.randrange(2**64),
    )
    prompt = tuple(rng.randrange(vocab_size) for _ in range(rng.randint(1, 40)))
    return Request(prompt, sampling, StopParams(max_tokens=rng.randint(1, 30), ignore_eos=True))


def oracle(backbone: Backbone, request: Request) -> list[int]:
    """Return what the step runner writes for a request alone, without drafts."""
    alone = run_all(Engine(StepRunner(backbone)), [replace(request, mtp="off")])
    return token_ids(alone[0])


@pytest.mark.parametrize("ahead", [False, True])
def test_plain_rounds_write_what_the_step_runner_writes(backbone: Backbone, ahead: bool) -> None:
    rng = random.Random(1)
    requests = [draw_request(rng, backbone.config.vocab_size) for _ in range(6)]
    engine = device_engine(backbone, device_drafters(None, backbone), begins_ahead=ahead)
    for request in requests:
        answer = run_all(engine, [replace(request, mtp="off")])[0]
        assert token_ids(answer) == oracle(backbone, request)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_drafts_leave_the_text_alone(backbone: Backbone, kind: HeadKind, ahead: bool) -> None:
    rng = random.Random(2)
    drafters = device_drafters(kind, backbone, looks_up=rng.random() < 0.5)
    engine = device_engine(backbone, drafters, begins_ahead=ahead)
    for mtp in MODES:
        request = draw_request(rng, backbone.config.vocab_size)
        answer = run_all(engine, [replace(request, mtp=mtp)])[0]
        assert token_ids(answer) == oracle(backbone, request), (mtp, request)


@pytest.mark.parametrize("num_streams", [2, 3, 8])
@pytest.mark.parametrize("ahead", [False, True])
def test_streams_leave_one_another_alone(backbone: Backbone, ahead: bool, num_streams: int) -> None:
    rng = random.Random(num_streams)
    drafters = device_drafters(rng.choice(KINDS), backbone)
    limits = EngineLimits(honour_k=True, prefill_rows_per_step=24)
    engine = device_engine(backbone, drafters, limits, begins_ahead=ahead)
    requests = [
        replace(draw_request(rng, backbone.config.vocab_size), mtp=rng.choice(MODES))
        for _ in range(num_streams)
    ]
    for request, answer in zip(requests, run_all(engine, requests), strict=True):
        assert token_ids(answer) == oracle(backbone, request), request


def draw_shared(rng: random.Random, prompts: Sequence[tuple[int, ...]]) -> Request:
    """Draw a request whose prompt begins like others, picked on the device or by the host."""
    shared = rng.choice(prompts)
    own = tuple(rng.choice(shared) for _ in range(rng.randint(0, 12)))
    sampling = SamplingParams(
        temperature=rng.choice([0.0, 0.0, 0.7, 1.0]),
        top_p=rng.choice([1.0, 0.9]),
        repetition_penalty=rng.choice([1.0, 1.0, 1.0, 1.2]),
        logprobs=rng.choice([None, None, None, 2]),
        seed=rng.randrange(2**32),
    )
    prompt = shared[: rng.randint(1, len(shared))] + own
    stopping = StopParams(max_tokens=rng.randint(1, 40), ignore_eos=True)
    return Request(prompt, sampling, stopping, rng.choice(MODES))


@pytest.mark.parametrize("ahead", [False, True])
def test_64_requests_with_little_memory_get_what_they_get_alone(
    backbone: Backbone, ahead: bool
) -> None:
    """Prefixes are shared, sequences set back, rounds ahead discarded, some requests cancelled."""
    rng = random.Random(f"{backbone.config.architecture} {ahead}")
    drafters = device_drafters(rng.choice(KINDS), backbone)
    limits = EngineLimits(
        max_running=12, kv_bytes=22 * page_bytes(backbone, drafters), prefill_rows_per_step=48
    )
    engine = device_engine(backbone, drafters, limits, begins_ahead=ahead)
    size = backbone.config.vocab_size
    prompts = [tuple(rng.randrange(size) for _ in range(150)) for _ in range(3)]
    waiting = [draw_shared(rng, prompts) for _ in range(64)]
    running: list[Running] = []
    while waiting or any(one.finish_reason is None for one in running):
        for _ in range(min(len(waiting), rng.choice([0, 1, 4]))):
            running.append(engine.submit(waiting.pop()))
        engine.step()
        live = [one for one in running if one.finish_reason is None]
        if live and rng.random() < 0.03:
            engine.cancel(rng.choice(live))
    for one in running:
        if one.finish_reason is not FinishReason.CANCELLED:
            assert token_ids(one) == oracle(backbone, one.request), one.request
    seen = engine.snapshot()
    assert seen.num_preemptions > 0
    assert seen.prefix_hit_tokens > 500
    engine.clear_prefixes()
    assert engine.snapshot().kv_bytes == 0, "all pages have come back"
