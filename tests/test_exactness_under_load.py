"""Exactness under load: what a request gets does not depend on who else is there.

Mixed requests together (policies, temperatures, lengths; some cancelled), with little memory so
that requests are set back and computed anew, and with prompts that begin alike so that caches are
shared. Every token must be the one that the request gets alone, with MTP off.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from headlong.config import MtpMode, SamplingParams, StopParams
from headlong.decode.autoregressive import generate_plain
from headlong.decode.memory import CacheMemory
from headlong.decode.request import Request
from headlong.decode.sampling import Pick, Sampler
from headlong.drafters.drafter import Drafter
from headlong.engine.engine import Engine
from headlong.engine.limits import EngineLimits
from headlong.engine.request import FinishReason, Running
from headlong.llm import LLM
from headlong.models.transformer import Backbone
from model_files import EVERY_BACKBONE, HYBRIDS
from random_drafters import drafter_named
from random_heads import HEAD_KINDS

DRAFTERS = ("ngram", "draft-model", *HEAD_KINDS, "chain-eagle3")


def draw_request(rng: random.Random, prompts: Sequence[tuple[int, ...]]) -> Request:
    """Draw a request whose prompt begins like others."""
    shared = rng.choice(prompts)
    own = tuple(rng.choice(shared) for _ in range(rng.randint(0, 12)))
    modes: list[MtpMode] = ["auto", "auto", "off", 1, 3, 6]
    sampling = SamplingParams(
        temperature=rng.choice([0.0, 0.0, 0.7, 1.0]),
        top_p=rng.choice([1.0, 0.9]),
        repetition_penalty=rng.choice([1.0, 1.2]),
        frequency_penalty=rng.choice([0.0, 0.3]),
        seed=rng.randrange(2**32),
    )
    stopping = StopParams(max_tokens=rng.randint(1, 40), ignore_eos=True)
    prompt = shared[: rng.randint(1, len(shared))] + own
    return Request(prompt, sampling, stopping, rng.choice(modes))


def oracle(backbone: Backbone, request: Request) -> list[Pick]:
    """Return what the plain loop writes for a request."""
    sampler = Sampler(request.sampling, request.prompt_ids, backbone.config.vocab_size)
    plain = generate_plain(backbone, request.prompt_ids, sampler)
    return [next(plain) for _ in range(request.stopping.max_tokens)]


@dataclass
class Client:
    """Somebody who reads an answer as it comes."""

    running: Running
    picks: list[Pick] = field(default_factory=list)

    def read(self) -> None:
        """Take what is there."""
        while self.running.outbox:
            self.picks.append(self.running.outbox.popleft().pick)


def serve(engine: Engine, requests: Sequence[Request], rng: random.Random) -> list[Client]:
    """Submit requests over time, cancel some half-way, and run all to their ends."""
    waiting = list(requests)
    clients: list[Client] = []
    while waiting or any(client.running.finish_reason is None for client in clients):
        for _ in range(min(len(waiting), rng.choice([0, 1, 1, 5]))):
            clients.append(Client(engine.submit(waiting.pop(0))))
        engine.step()
        for client in clients:
            client.read()
        if clients and rng.random() < 0.04:
            engine.cancel(rng.choice(clients).running)
    return clients


def check(backbone: Backbone, clients: Sequence[Client]) -> None:
    """Compare every answer, whole or cut off, with what the request gets alone."""
    for client in clients:
        request, reason = client.running.request, client.running.finish_reason
        expected = oracle(backbone, request)
        if reason is FinishReason.CANCELLED:
            expected = expected[: len(client.picks)]
        assert client.picks == expected, (request, reason)


def tight_limits(backbone: Backbone, drafter: Drafter, num_tokens: int = 130) -> EngineLimits:
    """Return limits under which about three requests of so many tokens fit."""
    largest = CacheMemory(backbone, drafter, None, 0).bytes_for(num_tokens, drafts=True)
    return EngineLimits(
        max_running=12, kv_bytes=3 * largest, prefill_rows_per_step=48, honour_k=True
    )


def shared_prompts(rng: random.Random, vocab_size: int) -> list[tuple[int, ...]]:
    """Draw a few long beginnings."""
    return [tuple(rng.randrange(vocab_size) for _ in range(70)) for _ in range(3)]


@pytest.mark.parametrize("name", DRAFTERS)
def test_every_drafter_shares_and_recomputes_exactly(
    tiny_backbone: Callable[[str], Backbone], name: str
) -> None:
    backbone = tiny_backbone("llama")
    drafter, rng = drafter_named(name, backbone), random.Random(name)
    engine = Engine.for_model(backbone, drafter, tight_limits(backbone, drafter))
    prompts = shared_prompts(rng, backbone.config.vocab_size)
    check(backbone, serve(engine, [draw_request(rng, prompts) for _ in range(16)], rng))
    assert engine.snapshot().prefix_hit_tokens > 30


@pytest.mark.parametrize("architecture", EVERY_BACKBONE)
def test_64_mixed_requests_get_what_they_get_alone(
    tiny_backbone: Callable[[str], Backbone], architecture: str
) -> None:
    backbone = tiny_backbone(architecture)
    drafter, rng = drafter_named("chain-eagle3", backbone), random.Random(architecture)
    limits = tight_limits(backbone, drafter)
    engine = Engine.for_model(backbone, drafter, limits)
    prompts = shared_prompts(rng, backbone.config.vocab_size)
    clients = serve(engine, [draw_request(rng, prompts) for _ in range(64)], rng)
    check(backbone, clients)
    seen = engine.snapshot()
    # What a hybrid takes hardly grows, and it is shared only where a snapshot lies.
    is_hybrid = architecture in HYBRIDS
    assert seen.num_preemptions > 0 or is_hybrid, "memory was to be short"
    assert seen.prefix_hit_tokens > (20 if is_hybrid else 200), "prompts were to be shared"
    assert any(one.running.finish_reason is FinishReason.CANCELLED for one in clients)
    assert limits.kv_bytes is not None
    assert seen.kv_bytes <= limits.kv_bytes


def test_default_model_answers_the_same_under_load(
    default_llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headlong.decode.memory.ROOM_AHEAD", 8)  # so that memory runs short later
    backbone, drafter = default_llm.backbone, default_llm.drafter
    assert drafter is not None
    rng = random.Random(11)
    texts = (
        "You are a helpful assistant. List the colours of the rainbow, in order, and again.",
        "def fibonacci(n):\n    if n <= 1:\n        return n\n    return fibonacci(n - 1) +",
    )
    prompts = [tuple(default_llm.tokenizer.encode(text)) for text in texts]
    engine = Engine.for_model(backbone, drafter, tight_limits(backbone, drafter, 90))
    requests = [
        replace(one, stopping=StopParams(max_tokens=40, ignore_eos=True))
        for one in (draw_request(rng, prompts) for _ in range(10))
    ]
    check(backbone, serve(engine, requests, rng))
    seen = engine.snapshot()
    assert seen.num_preemptions > 0
    assert seen.prefix_hit_tokens > 10
