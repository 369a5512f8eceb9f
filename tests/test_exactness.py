"""Exactness: the tokens are the same, bit for bit, with MTP on or off.

Tiny random backbones of every architecture and the real default model; every drafter and the
chain; greedy and sampled; every penalty and filter; with a grammar and without; any K, prefill
chunk and batch. The oracle is the plain loop of `decode/autoregressive.py`. Random heads draft
badly and scripted ones well, so runs of every length are accepted and refused. A wrong head may
change speed, never text.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import pytest

from fakes import Phrases, ScriptedDrafter
from golden_models import WITH_MTP, load_with_head, with_fewer_tokens
from headlong.config import MtpMode, SamplingParams, StopParams
from headlong.decode.autoregressive import generate_plain
from headlong.decode.request import Request
from headlong.decode.sampling import Pick, Sampler
from headlong.drafters.choose import make_drafter
from headlong.engine.engine import Engine
from headlong.engine.limits import EngineLimits
from headlong.engine.request import FinishReason, Running
from headlong.heads.head_files import build_head
from headlong.heads.nextn import NextnHead
from headlong.llm import LLM
from headlong.models.transformer import Backbone
from model_files import EVERY_BACKBONE, HYBRIDS
from random_drafters import drafter_named
from random_heads import HEAD_KINDS, random_head

TEMPERATURES = (0.0, 0.3, 0.7, 1.0)
DRAFTERS = ("ngram", "draft-model", *HEAD_KINDS, *(f"chain-{kind}" for kind in HEAD_KINDS))

Maker = Callable[[str], Backbone]


@dataclass(frozen=True)
class Case:
    """One random way of asking."""

    request: Request
    limits: EngineLimits


def draw_mtp(rng: random.Random) -> MtpMode:
    """Draw a way to draft."""
    length = rng.randint(0, 6)
    return length if length else "auto"


def draw_grammar(request: Request, vocab_size: int) -> Phrases | None:
    """Draw phrases that branch now and then and have only one way to go in between, or nothing."""
    rng = random.Random(repr(request.prompt_ids))
    eos_id = min(request.eos_ids)
    tokens = [token_id for token_id in range(vocab_size) if token_id != eos_id]
    phrases = [tuple(rng.choices(tokens, k=rng.randint(1, 30)))]
    for _ in range(rng.randint(0, 12)):
        known = rng.choice(phrases)
        common = known[: rng.randint(0, len(known))]
        phrases.append((*common, *rng.choices(tokens, k=rng.randint(0, 12))))
    return Phrases(phrases, eos_id, vocab_size) if rng.random() < 0.3 else None


def random_case(rng: random.Random, vocab_size: int) -> Case:
    """Draw a prompt, sampling parameters, a draft length and a prefill chunk."""
    sampling = SamplingParams(
        temperature=rng.choice(TEMPERATURES),
        top_k=rng.choice([0, 0, 5, 40]),
        top_p=rng.choice([1.0, 1.0, 0.9, 0.5]),
        min_p=rng.choice([0.0, 0.0, 0.05]),
        repetition_penalty=rng.choice([1.0, 1.0, 1.3, 0.8]),
        presence_penalty=rng.choice([0.0, 0.0, 0.7]),
        frequency_penalty=rng.choice([0.0, 0.0, 0.4, -0.3]),
        logit_bias={rng.randrange(vocab_size): rng.uniform(-5, 5)} if rng.random() < 0.3 else {},
        seed=rng.randrange(2**64),
        logprobs=rng.choice([None, 0, 3]),
    )
    request = Request(
        prompt_ids=tuple(rng.randrange(vocab_size) for _ in range(rng.randint(1, 40))),
        sampling=sampling,
        stopping=StopParams(max_tokens=rng.randint(1, 40), ignore_eos=rng.random() < 0.3),
        mtp=draw_mtp(rng),
        eos_ids=frozenset(rng.sample(range(vocab_size), 2)),
    )
    return Case(
        replace(request, grammar=draw_grammar(request, vocab_size)),
        EngineLimits(prefill_rows_per_step=rng.choice([1, 3, 8, 256])),
    )


def oracle(backbone: Backbone, request: Request) -> list[Pick]:
    """Return what the plain loop writes for a request."""
    constraint = None if request.grammar is None else request.grammar.begin()
    vocab_size = backbone.config.vocab_size
    sampler = Sampler(request.sampling, request.prompt_ids, vocab_size, constraint)
    picks: list[Pick] = []
    for pick in generate_plain(backbone, request.prompt_ids, sampler):
        picks.append(pick)
        ended = pick.token_id in request.eos_ids and not request.stopping.ignore_eos
        if ended or len(picks) == request.stopping.max_tokens:
            return picks
    raise AssertionError("the plain loop has no end of its own")


def run(engine: Engine, requests: Sequence[Request]) -> list[Running]:
    """Run requests together until all have ended."""
    running = [engine.submit(request) for request in requests]
    while any(one.finish_reason is None for one in running):
        engine.step()
    return running


def picks_of(running: Running) -> list[Pick]:
    """Return everything a request was handed."""
    return [emitted.pick for emitted in running.outbox]


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("architecture", EVERY_BACKBONE)
def test_every_drafter_leaves_the_text_alone(
    tiny_backbone: Maker, architecture: str, name: str
) -> None:
    backbone = tiny_backbone(architecture)
    drafter = drafter_named(name, backbone)
    rng = random.Random(f"{architecture} {name}")
    for _ in range(6):
        case = random_case(rng, backbone.config.vocab_size)
        engine = Engine.for_model(backbone, drafter, case.limits)
        assert picks_of(run(engine, [case.request])[0]) == oracle(backbone, case.request), case


@pytest.mark.parametrize("backend", ["numpy", "native"])
@pytest.mark.parametrize("name", WITH_MTP)
def test_native_heads_leave_the_text_alone(name: str, backend: str) -> None:
    """A model's own MTP layer, alone, behind n-grams, and with fewer tokens to draft from."""
    head = load_with_head(name, backend)
    assert isinstance(head, NextnHead)
    backbone = head.backbone
    rng = random.Random(f"{name} {backend}")
    fewer = with_fewer_tokens(head, name, "auto")
    drafters = [make_drafter("head", backbone, one, None) for one in (head, fewer)]
    for made in (*drafters, make_drafter("auto", backbone, head, None)):
        cases = [random_case(rng, backbone.config.vocab_size) for _ in range(4)]
        engine = Engine.for_model(backbone, made, cases[0].limits)
        alone = [oracle(backbone, case.request) for case in cases]
        together = run(engine, [case.request for case in cases])
        assert [picks_of(one) for one in together] == alone


@pytest.mark.parametrize("architecture", EVERY_BACKBONE)
def test_runs_of_every_length_are_accepted_exactly(tiny_backbone: Maker, architecture: str) -> None:
    """Guards EOS, max_tokens and refusals at every place inside an accepted run."""
    backbone = tiny_backbone(architecture)
    rng = random.Random(architecture)
    num_accepted = 0
    for _ in range(12):
        case = random_case(rng, backbone.config.vocab_size)
        picks = oracle(backbone, case.request)
        truth = [*case.request.prompt_ids, *(pick.token_id for pick in picks), *range(8)]
        spoiled = frozenset(p for p in range(len(truth)) if rng.random() < 0.3)
        drafter = ScriptedDrafter(truth, backbone.config.vocab_size, spoiled)
        finished = run(Engine.for_model(backbone, drafter, case.limits), [case.request])[0]
        assert picks_of(finished) == picks, case
        num_accepted += finished.stats.num_accepted
    assert num_accepted > 50, "the script is mostly true, so most of it must stand"


@pytest.mark.parametrize("name", ["ngram", "draft-model", "eagle3", "chain-nextn", "meta"])
@pytest.mark.parametrize("architecture", ["llama", *HYBRIDS])
def test_batch_mates_leave_the_text_alone(
    tiny_backbone: Maker, architecture: str, name: str
) -> None:
    backbone = tiny_backbone(architecture)
    rng = random.Random(name)
    cases = [random_case(rng, backbone.config.vocab_size) for _ in range(7)]
    finished = run(
        Engine.for_model(backbone, drafter_named(name, backbone)), [c.request for c in cases]
    )
    for case, running in zip(cases, finished, strict=True):
        assert picks_of(running) == oracle(backbone, case.request), case


@pytest.mark.parametrize("architecture", ["qwen3", *HYBRIDS])
def test_late_comers_and_cancelled_mates_change_nothing(
    tiny_backbone: Maker, architecture: str
) -> None:
    backbone = tiny_backbone(architecture)
    rng = random.Random(5)
    cases = [random_case(rng, backbone.config.vocab_size) for _ in range(6)]
    engine = Engine.for_model(backbone, drafter_named("chain-eagle3", backbone))
    running = []
    for case in cases:
        running.append(engine.submit(case.request))
        engine.step()
    before_cancel = picks_of(running[0])
    engine.cancel(running[0])
    while any(one.finish_reason is None for one in running):
        engine.step()
    assert running[0].finish_reason is FinishReason.CANCELLED
    assert before_cancel == oracle(backbone, cases[0].request)[: len(before_cancel)]
    for case, one in zip(cases[1:], running[1:], strict=True):
        assert picks_of(one) == oracle(backbone, case.request)


def test_a_head_of_another_model_changes_speed_only(tiny_backbone: Maker) -> None:
    """A head trained on something else drafts rubbish; nobody may notice but the clock."""
    backbone = tiny_backbone("llama")
    request = Request(tuple(range(5, 25)), stopping=StopParams(max_tokens=40), mtp=6)
    texts = set()
    for seed in range(4):
        head = build_head(random_head("eagle3", backbone.config, seed), backbone)
        drafter = make_drafter("head", backbone, head, None)
        finished = run(Engine.for_model(backbone, drafter), [request])[0]
        texts.add(tuple(pick.token_id for pick in picks_of(finished)))
    assert texts == {tuple(pick.token_id for pick in oracle(backbone, request))}


REAL_PROMPTS = (
    "def fibonacci(n):\n    if n <= 1:\n        return n\n",
    "List of colours: red, green, blue, red, green, blue, red,",
)


@pytest.mark.parametrize("name", ["ngram", "chain-eagle3", "nextn"])
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_default_model_writes_the_same_with_mtp(
    default_llm: LLM, name: str, temperature: float
) -> None:
    backbone = default_llm.backbone
    engine = Engine.for_model(backbone, drafter_named(name, backbone))
    for seed, prompt in enumerate(REAL_PROMPTS):
        request = Request(
            tuple(default_llm.tokenizer.encode(prompt)),
            SamplingParams(temperature=temperature, seed=seed, repetition_penalty=1.0 + seed / 10),
            StopParams(max_tokens=16),
            mtp=4,
            eos_ids=default_llm.tokenizer.eos_ids,
        )
        assert picks_of(run(engine, [request])[0]) == oracle(backbone, request)


def test_default_model_agrees_with_itself_when_all_is_accepted(default_llm: LLM) -> None:
    backbone = default_llm.backbone
    prompt_ids = tuple(default_llm.tokenizer.encode(REAL_PROMPTS[0]))
    request = Request(prompt_ids, stopping=StopParams(max_tokens=20), mtp=6)
    picks = oracle(backbone, request)
    truth = [*prompt_ids, *(pick.token_id for pick in picks)]
    drafter = ScriptedDrafter(truth, backbone.config.vocab_size)
    finished = run(Engine.for_model(backbone, drafter), [request])[0]
    assert picks_of(finished) == picks
    assert finished.stats.acceptance_length > 5, "a perfect draft must stand"


def test_plain_loop_yields_without_end(tiny_backbone: Maker) -> None:
    backbone = tiny_backbone("llama")
    sampler = Sampler(SamplingParams(), [1], backbone.config.vocab_size)
    assert len(list(islice(generate_plain(backbone, [1], sampler), 50))) == 50
