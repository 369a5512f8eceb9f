"""A fixed K beside other requests: an upper bound there, since all of them pay for its rows."""

from collections.abc import Callable

import pytest

from fakes import ScriptedDrafter
from headlong.config import MtpMode, StopParams
from headlong.decode.request import Request
from headlong.engine.engine import Engine
from headlong.engine.limits import EngineLimits
from headlong.engine.request import Running
from headlong.models.transformer import Backbone
from policy_world import World, play, play_mixed

NUM_ROUNDS = 400

PROMPT = tuple(range(5, 20))

CHEAP = {
    "free rows": World(lambda num_rows: 0.01, chance=lambda rng, time: 0.8),
    "cheap rows": World(lambda num_rows: 0.0032 + 0.0002 * num_rows, chance=lambda rng, time: 0.75),
}


def crowded_pass(num_rows: int) -> float:
    """Many rows on two cores: all of them cost alike."""
    return 0.003 + 0.0005 * num_rows


@pytest.fixture
def backbone(tiny_backbone: Callable[[str], Backbone]) -> Backbone:
    """A tiny Llama."""
    return tiny_backbone("llama")


def test_one_client_s_fixed_length_is_not_paid_by_all() -> None:
    """24 clients, two fifths of them with a fixed K that pays alone, not together."""
    world = World(crowded_pass, chance=lambda rng, time: 0.97 if rng.random() < 0.25 else 0.35)
    five: list[MtpMode] = [8, 4, "auto", "auto", "auto"]
    modes = (5 * five)[:24]
    plain = play(world, "off", NUM_ROUNDS, 24).tokens_per_second
    honoured = play_mixed(world, modes, NUM_ROUNDS, honours_k=True).tokens_per_second
    bound = play_mixed(world, modes, NUM_ROUNDS).tokens_per_second
    assert honoured < 0.8 * plain, "the fault"
    assert bound > 0.98 * plain


@pytest.mark.parametrize("name", CHEAP)
def test_a_bound_is_drafted_up_to_where_rows_are_cheap(name: str) -> None:
    """Two streams: there a fixed K pays as a bound, and never more is drafted."""
    world = CHEAP[name]
    bound = play_mixed(world, [3, 3], NUM_ROUNDS)
    plain = play(world, "off", NUM_ROUNDS, 2).tokens_per_second
    assert bound.tokens_per_second > 1.2 * plain
    assert max(bound.lengths) == 3


def finish(engine: Engine, *running: Running) -> None:
    """Run requests to their ends."""
    while any(one.finish_reason is None for one in running):
        engine.step()


def ids(running: Running) -> list[int]:
    """Return the token ids a request was handed."""
    return [emitted.pick.token_id for emitted in running.outbox]


def truth_of(backbone: Backbone) -> list[int]:
    """Return the prompt and the first tokens without any drafter."""
    engine = Engine.for_model(backbone)
    running = engine.submit(Request(PROMPT, stopping=StopParams(max_tokens=40)))
    finish(engine, running)
    return [*PROMPT, *ids(running)]


def run_beside(backbone: Backbone, limits: EngineLimits) -> list[Running]:
    """Run a short request with a fixed K beside a long one whose drafts nobody decides."""
    truth = truth_of(backbone)
    drafter = ScriptedDrafter(truth, backbone.config.vocab_size)
    engine = Engine.for_model(backbone, drafter, limits)
    requests = [
        Request(PROMPT, stopping=StopParams(max_tokens=40), mtp="off"),
        Request(PROMPT, stopping=StopParams(max_tokens=16), mtp=5),
    ]
    running = [engine.submit(request) for request in requests]
    finish(engine, *running)
    assert ids(running[0])[:16] == ids(running[1]) == truth[len(PROMPT) :][:16]
    return running


def test_fixed_k_is_an_upper_bound_beside_others_and_says_so(backbone: Backbone) -> None:
    bound = run_beside(backbone, EngineLimits())[1]
    assert "K=5 was an upper bound" in str(bound.report().bound_reason)
    assert bound.stats.k_histogram[0] >= 1, "the first round shows what a plain one costs"
    assert max(bound.stats.k_histogram) <= 5
    honoured = run_beside(backbone, EngineLimits(honour_k=True))[1]
    assert honoured.report().bound_reason is None
    assert set(honoured.stats.k_histogram) <= {5, 2}, "all but the last draft are whole"


def test_fixed_k_is_drafted_whole_while_alone(backbone: Backbone) -> None:
    truth = truth_of(backbone)
    engine = Engine.for_model(backbone, ScriptedDrafter(truth, backbone.config.vocab_size))
    running = engine.submit(Request(PROMPT, stopping=StopParams(max_tokens=13), mtp=5))
    finish(engine, running)
    assert running.stats.k_histogram == {5: 2}
    assert running.report().bound_reason is None
