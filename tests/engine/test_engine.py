"""The engine: requests in, tokens out, ends in the right place."""

from collections.abc import Callable

import pytest

from fakes import Phrases, ScriptedDrafter
from headlong.config import SamplingParams, StopParams
from headlong.decode.request import Request
from headlong.engine.engine import Engine
from headlong.engine.limits import EngineLimits
from headlong.engine.request import BACKBONE, FinishReason, Running
from headlong.errors import BusyError, EngineError, RequestError
from headlong.models.transformer import Backbone

PROMPT = tuple(range(5, 20))


@pytest.fixture
def backbone(tiny_backbone: Callable[[str], Backbone]) -> Backbone:
    """A tiny Llama."""
    return tiny_backbone("llama")


def finish(engine: Engine, request: Request) -> Running:
    """Run one request to its end."""
    running = engine.submit(request)
    while running.finish_reason is None:
        engine.step()
    return running


def ids(running: Running) -> list[int]:
    """Return the token ids a request was handed."""
    return [emitted.pick.token_id for emitted in running.outbox]


def plain_ids(backbone: Backbone, num_tokens: int) -> list[int]:
    """Return the first tokens without any drafter."""
    request = Request(PROMPT, stopping=StopParams(max_tokens=num_tokens))
    return ids(finish(Engine.for_model(backbone), request))


def test_max_tokens_ends_with_length(backbone: Backbone) -> None:
    running = finish(Engine.for_model(backbone), Request(PROMPT, stopping=StopParams(max_tokens=7)))
    assert running.finish_reason is FinishReason.LENGTH
    assert len(running.outbox) == 7


@pytest.mark.parametrize("max_tokens", range(1, 9))
def test_accepted_run_never_overshoots(backbone: Backbone, max_tokens: int) -> None:
    truth = [*PROMPT, *plain_ids(backbone, 20)]
    drafter = ScriptedDrafter(truth, backbone.config.vocab_size)
    request = Request(PROMPT, stopping=StopParams(max_tokens=max_tokens), mtp=6)
    running = finish(Engine.for_model(backbone, drafter), request)
    assert ids(running) == truth[len(PROMPT) :][:max_tokens]
    assert len(running.sequence.token_ids) == len(PROMPT) + max_tokens


def test_end_of_text_inside_an_accepted_run_cuts_it(backbone: Backbone) -> None:
    answer = plain_ids(backbone, 20)
    truth = [*PROMPT, *answer]
    eos_id = answer[3]
    request = Request(
        PROMPT, stopping=StopParams(max_tokens=20), mtp=6, eos_ids=frozenset([eos_id])
    )
    running = finish(
        Engine.for_model(backbone, ScriptedDrafter(truth, backbone.config.vocab_size)), request
    )
    assert running.finish_reason is FinishReason.STOP
    assert ids(running) == answer[: answer.index(eos_id) + 1]


def test_context_end_is_a_length_stop(backbone: Backbone) -> None:
    context = backbone.config.context_length
    prompt = tuple(7 + i % 50 for i in range(context - 3))
    running = finish(
        Engine.for_model(backbone), Request(prompt, stopping=StopParams(max_tokens=100))
    )
    assert running.finish_reason is FinishReason.LENGTH
    assert len(running.outbox) == 3


def test_prompt_over_the_context_names_both_numbers(backbone: Backbone) -> None:
    with pytest.raises(RequestError, match=r"512 tokens; the model's context holds 512"):
        Engine.for_model(backbone).submit(Request((5,) * 512))


@pytest.mark.parametrize("prompt", [(), (5, 96), (-1,)])
def test_impossible_prompts_are_refused(backbone: Backbone, prompt: tuple[int, ...]) -> None:
    with pytest.raises(RequestError):
        Engine.for_model(backbone).submit(Request(prompt))


def test_bias_on_unknown_token_is_refused(backbone: Backbone) -> None:
    with pytest.raises(RequestError, match="96"):
        Engine.for_model(backbone).submit(Request(PROMPT, SamplingParams(logit_bias={96: 1.0})))


def test_tokens_tell_where_they_came_from(backbone: Backbone) -> None:
    truth = [*PROMPT, *plain_ids(backbone, 20)]
    drafter = ScriptedDrafter(truth, backbone.config.vocab_size, frozenset([len(PROMPT) + 3]))
    request = Request(PROMPT, stopping=StopParams(max_tokens=6), mtp=3)
    running = finish(Engine.for_model(backbone, drafter), request)
    origins = [(emitted.source, emitted.depth) for emitted in running.outbox]
    # Prefill gives the first; of the first draft of three, two stand and the third is recovered.
    expected = [(BACKBONE, 0), ("scripted", 1), ("scripted", 2), (BACKBONE, 0)]
    assert origins[:4] == expected


def test_mtp_off_never_bothers_the_drafter(backbone: Backbone) -> None:
    truth = [*PROMPT, *plain_ids(backbone, 20)]
    drafter = ScriptedDrafter(truth, backbone.config.vocab_size)
    running = finish(
        Engine.for_model(backbone, drafter),
        Request(PROMPT, stopping=StopParams(max_tokens=9), mtp="off"),
    )
    assert running.stats.num_drafted == 0
    assert drafter.num_settled == []
    assert running.timings.prefill_head_s == 0


def test_prompt_reaches_the_drafter_exactly_once(backbone: Backbone) -> None:
    truth = [*PROMPT, *plain_ids(backbone, 20)]
    drafter = ScriptedDrafter(truth, backbone.config.vocab_size)
    engine = Engine.for_model(backbone, drafter, EngineLimits(prefill_rows_per_step=4))
    running = finish(engine, Request(PROMPT, stopping=StopParams(max_tokens=9), mtp=2))
    assert drafter.num_settled[:4] == [4, 4, 4, 3]
    assert sum(drafter.num_settled) == len(running.sequence.token_ids) - 1


def test_prompt_waits_for_a_drafter_that_nobody_asks(backbone: Backbone) -> None:
    """Beside others a draft may never pay, so the head looks at prompts once one is wanted."""
    drafter = ScriptedDrafter([], backbone.config.vocab_size)
    engine = Engine.for_model(backbone, drafter)
    engine.submit(Request(PROMPT, mtp="off"))
    engine.step()
    waits = engine.submit(Request((7, *PROMPT[:5]), mtp="auto"))
    ordered = engine.submit(Request((8, 9, *PROMPT[:5]), mtp=2))
    while not waits.num_emitted:
        engine.step()
    assert ordered.num_emitted, "both were read in one pass"
    assert drafter.num_settled == [7]
    assert (waits.sequence.backlog.num_rows, ordered.sequence.backlog.num_rows) == (6, 0)


def test_cancelled_request_stops_at_once(backbone: Backbone) -> None:
    engine = Engine.for_model(backbone)
    running = engine.submit(Request(PROMPT, stopping=StopParams(max_tokens=50)))
    engine.step()
    engine.cancel(running)
    engine.step()
    assert running.finish_reason is FinishReason.CANCELLED
    assert not running.outbox
    assert running.timings.num_tokens == 0, "tokens nobody took do not count"


def test_cancelling_twice_keeps_the_first_reason(backbone: Backbone) -> None:
    engine = Engine.for_model(backbone)
    running = finish(engine, Request(PROMPT, stopping=StopParams(max_tokens=2)))
    engine.cancel(running)
    assert running.finish_reason is FinishReason.LENGTH


def test_times_and_tokens_are_booked(backbone: Backbone) -> None:
    running = finish(
        Engine.for_model(backbone), Request(PROMPT, stopping=StopParams(max_tokens=10))
    )
    timings = running.timings
    assert timings.num_tokens == 9
    assert timings.prefill_s > 0
    assert timings.decode_s >= timings.verify_s > 0
    assert running.stats.rounds == 9


def test_broken_prompt_ends_its_request_only(backbone: Backbone) -> None:
    engine = Engine.for_model(backbone)
    good = engine.submit(Request(PROMPT, stopping=StopParams(max_tokens=5)))
    engine.step()
    bad = engine.submit(Request(PROMPT))
    bad.sequence.sampler = None  # type: ignore[assignment]
    while bad.finish_reason is None:
        engine.step()
    assert bad.finish_reason is FinishReason.ERROR
    assert isinstance(bad.error, EngineError)
    assert isinstance(bad.error.__cause__, AttributeError)
    while good.finish_reason is None:
        engine.step()
    assert ids(good) == plain_ids(backbone, 5)


def test_wish_for_drafts_without_a_drafter_is_answered(backbone: Backbone) -> None:
    running = finish(
        Engine.for_model(backbone), Request(PROMPT, stopping=StopParams(max_tokens=3), mtp=4)
    )
    assert running.sequence.off_reason == "The model was loaded without a drafter."


def test_speed_is_compared_with_plain_decoding(backbone: Backbone) -> None:
    truth = [*PROMPT, *plain_ids(backbone, 60)]
    engine = Engine.for_model(backbone, ScriptedDrafter(truth, backbone.config.vocab_size))
    plain = finish(engine, Request(PROMPT, stopping=StopParams(max_tokens=40), mtp="off"))
    drafted = finish(engine, Request(PROMPT, stopping=StopParams(max_tokens=60), mtp=6))
    assert plain.timings.measured_speedup == 1.0, "a plain round is its own measure"
    timings = drafted.timings
    assert timings.compared_s == pytest.approx(timings.decode_s), "every round was compared"
    assert timings.measured_speedup == pytest.approx(timings.plain_s / timings.decode_s)


def test_speed_is_unknown_where_no_plain_pass_was_measured(backbone: Backbone) -> None:
    truth = [*PROMPT, *plain_ids(backbone, 60)]
    engine = Engine.for_model(backbone, ScriptedDrafter(truth, backbone.config.vocab_size))
    # Four rounds of five tokens and no shorter one: nothing tells what one row would have cost.
    running = finish(engine, Request(PROMPT, stopping=StopParams(max_tokens=21), mtp=4))
    assert running.timings.measured_speedup is None


def test_requests_wait_for_a_place_and_are_refused_beyond(backbone: Backbone) -> None:
    engine = Engine.for_model(backbone, limits=EngineLimits(max_running=2, max_waiting=1))
    running = [engine.submit(Request(PROMPT[i:])) for i in range(3)]
    engine.step()
    assert (engine.num_running, engine.num_waiting) == (2, 1)
    with pytest.raises(BusyError, match="Try again in"):
        engine.submit(Request(PROMPT))
    engine.cancel(running[0])
    last = engine.submit(Request(PROMPT))
    engine.step()
    assert (engine.num_running, engine.num_waiting) == (2, 1)
    engine.step()
    assert (running[2].num_emitted, last.num_emitted) == (1, 0), "first come, first served"


def test_streams_go_on_while_a_long_prompt_is_read(backbone: Backbone) -> None:
    engine = Engine.for_model(backbone)
    stream = engine.submit(Request(PROMPT, stopping=StopParams(max_tokens=100)))
    engine.step()
    late = engine.submit(Request(tuple(5 + i % 80 for i in range(400))))
    gains = []
    while late.num_emitted < 2:
        before = stream.num_emitted
        engine.step()
        gains.append(stream.num_emitted - before)
        assert engine.snapshot().num_prefilling == (0 if late.num_emitted else 1)
    assert len(gains) > 3, "read in pieces"
    *others, first_token, last = gains
    assert min(others) >= 1, "every step gave the stream a token"
    assert (first_token, last) == (0, 1), "only the first token of another went out before"


def test_first_token_waits_for_no_round(backbone: Backbone) -> None:
    engine = Engine.for_model(backbone)
    first, second = (engine.submit(Request(PROMPT[i:])) for i in range(2))
    engine.step()
    assert (first.num_emitted, second.num_emitted) == (1, 1), "both prompts were short"
    third = engine.submit(Request(PROMPT[2:]))
    engine.step()
    assert (first.num_emitted, second.num_emitted, third.num_emitted) == (2, 2, 0)
    engine.step()
    assert (first.num_emitted, second.num_emitted, third.num_emitted) == (2, 2, 1)


def test_speed_up_counts_no_token_behind_the_end(backbone: Backbone) -> None:
    """Guards a last draft that reaches far beyond the end, and looks like a gain."""
    truth = [*PROMPT, *plain_ids(backbone, 30)]
    engine = Engine.for_model(backbone, ScriptedDrafter(truth, backbone.config.vocab_size))
    finish(engine, Request(PROMPT, stopping=StopParams(max_tokens=40), mtp="off"))
    end = truth[len(PROMPT) + 2]
    assert end not in truth[len(PROMPT) : len(PROMPT) + 2]
    request = Request(PROMPT, stopping=StopParams(max_tokens=20), mtp=8, eos_ids=frozenset({end}))
    running = finish(engine, request)
    assert running.num_emitted == 3, "one of the prompt, two of a round that had nine"
    timings = running.timings
    plain_s = engine.policy.plain_s(1, 9, timings.verify_s)
    assert plain_s is not None
    assert timings.plain_s == pytest.approx(2 * plain_s)


def test_all_that_a_round_takes_is_counted(backbone: Backbone) -> None:
    """Guards speeds that leave out the work around drafts and passes."""
    running = finish(
        Engine.for_model(backbone), Request(PROMPT, stopping=StopParams(max_tokens=20))
    )
    timings = running.timings
    assert timings.decode_s > timings.draft_s + timings.verify_s


def test_snapshot_counts_rows_of_the_last_round(backbone: Backbone) -> None:
    truth = [*PROMPT, *plain_ids(backbone, 30)]
    drafter = ScriptedDrafter(truth, backbone.config.vocab_size)
    engine = Engine.for_model(backbone, drafter, EngineLimits(honour_k=True))
    for mtp in (3, "off"):
        engine.submit(Request(PROMPT, stopping=StopParams(max_tokens=30), mtp=mtp))
    engine.step()
    engine.step()
    assert engine.snapshot().last_rows == 4 + 1


def test_row_budget_cuts_drafts_not_streams(backbone: Backbone) -> None:
    truth = [*PROMPT, *plain_ids(backbone, 30)]
    drafter = ScriptedDrafter(truth, backbone.config.vocab_size)
    engine = Engine.for_model(backbone, drafter, EngineLimits(rows_per_step=5, honour_k=True))
    running = [
        engine.submit(Request(PROMPT, stopping=StopParams(max_tokens=20), mtp=6)) for _ in range(3)
    ]
    while any(one.finish_reason is None for one in running):
        engine.step()
        assert engine.snapshot().last_rows <= 5
    assert all(ids(one) == truth[len(PROMPT) :][:20] for one in running)


def test_forced_spans_of_many_keep_to_the_rows_of_a_step(backbone: Backbone) -> None:
    vocab_size, phrase = backbone.config.vocab_size, tuple(30 + i % 50 for i in range(40))
    limits = EngineLimits(max_running=8, rows_per_step=24)
    engine = Engine.for_model(backbone, ScriptedDrafter([], vocab_size), limits)
    request = Request(
        PROMPT,
        stopping=StopParams(max_tokens=60),
        eos_ids=frozenset([0]),
        grammar=Phrases([phrase], 0, vocab_size),
    )
    runnings = [engine.submit(request) for _ in range(8)]
    most = 0
    while any(one.finish_reason is None for one in runnings):
        engine.step()
        most = max(most, engine.snapshot().last_rows)
    assert most == 24
    assert all(tuple(ids(one)[:40]) == phrase for one in runnings)
