"""The fleet's engine client: streams over real sockets, in order, ended by either side."""

import threading
import time

import pytest

from front_parts import answers, expected, request, run_fleet, step_until_done
from headlong.config import SamplingParams, StopParams
from headlong.engine.limits import EngineLimits
from headlong.engine.request import BACKBONE, FinishReason
from headlong.errors import BusyError, RequestError
from headlong.fleet.gain import kind_of
from http_engine import run_engine


def test_every_request_gets_its_own_answer() -> None:
    requests = [request(*range(3, 4 + number)) for number in range(40)]
    with run_engine() as one, run_engine() as two, run_fleet(one, two) as engine:
        assert answers(engine, *requests) == [expected(one, it) for it in requests]
        assert one.num_requests + two.num_requests == 40
        assert min(one.num_requests, two.num_requests) > 5
        assert (engine.num_running, engine.num_waiting) == (0, 0)
        assert engine.snapshot().num_finished == 40


def test_report_tells_what_drafts_did() -> None:
    with run_engine(num_spec_tokens=4) as speculative, run_fleet(speculative) as engine:
        stream = engine.submit(request(mtp=4))
        step_until_done(engine, stream)
        report = stream.report()
        assert report.stats.num_drafted == speculative.num_drafted > 0
        assert report.stats.num_accepted == speculative.num_accepted > 0
        assert (report.num_prompt_tokens, report.num_completion_tokens) == (3, 12)
        assert report.timings.prefill_s > 0
        assert report.off_reason is None
        accepted = [one for one in stream.take() if one.source != BACKBONE]
        assert {one.source for one in accepted} == {"engine"}
        assert max(one.depth for one in accepted) > 1


def test_report_of_a_plain_replica_says_why_nothing_was_drafted() -> None:
    with run_engine() as plain, run_fleet(plain) as engine:
        stream = engine.submit(request())
        step_until_done(engine, stream)
        report = stream.report()
        assert report.off_reason == "No replica of this server drafts."
        assert report.stats.rounds == 11
        assert report.stats.acceptance_length == 1


def test_log_probabilities_come_with_their_tokens() -> None:
    with run_engine() as plain, run_fleet(plain) as engine:
        stream = engine.submit(request(sampling=SamplingParams(logprobs=2)))
        step_until_done(engine, stream)
        for emitted in stream.take():
            assert emitted.pick.logprob is not None
            assert emitted.pick.logprob.token_id == emitted.pick.token_id
            assert len(emitted.pick.logprob.top) == 2


def test_cancelled_request_ends_on_its_engine() -> None:
    long = request(stopping=StopParams(max_tokens=500))
    with run_engine(token_s=0.01) as plain, run_fleet(plain) as engine:
        stream = engine.submit(long)
        while stream.num_ready < 3:
            engine.step()
        stream.take(2)
        engine.cancel(stream)
        assert (stream.finish_reason, stream.num_ready) == (FinishReason.CANCELLED, 0)
        assert stream.report().num_completion_tokens == 2
        _wait_for(lambda: plain.num_left == 1)
        assert plain.num_finished == 0
        assert answers(engine, request()) == [expected(plain, request())]


def test_answer_that_is_cut_short_is_measured_too() -> None:
    """Stop strings end answers here: who always uses them was never measured."""
    long = request(stopping=StopParams(max_tokens=2000, ignore_eos=True))
    with run_engine(token_s=0.01) as only, run_fleet(only) as engine:
        stream = engine.submit(long)
        while stream.num_ready < 5:
            engine.step()
        engine.cancel(stream)
        gains, kind = engine._dispatcher.router.gains, kind_of(long)
        _wait_for(lambda: gains.forecast(kind).plain_s is not None)


def test_step_returns_when_it_is_woken() -> None:
    with run_engine() as plain, run_fleet(plain) as engine:
        threading.Timer(0.1, engine.wake).start()
        began_s = time.monotonic()
        engine.step()
        assert time.monotonic() - began_s < 5


def test_more_requests_than_may_wait_are_refused() -> None:
    limits = EngineLimits(max_running=1, max_waiting=1)
    with run_engine(token_s=0.01) as plain, run_fleet(plain, limits=limits) as engine:
        streams = [engine.submit(request()), engine.submit(request(8))]
        with pytest.raises(
            BusyError, match="2 requests run or wait; the limits are 1 that run and 1"
        ):
            engine.submit(request())
        while not streams[0].num_ready:
            engine.step()
        assert (engine.num_running, engine.num_waiting) == (1, 1)
        step_until_done(engine, *streams)
        assert plain.num_finished == 2


def test_requests_that_no_replica_could_run_are_refused() -> None:
    impossible = {
        "has 5000 tokens": request(*([5] * 5000)),
        "prompt is empty": request().__class__(()),
        "Token id 266": request(266),
        "needs embeddings": request(pooling="mean"),
    }
    with run_engine() as plain, run_fleet(plain) as engine:
        for problem, one in impossible.items():
            with pytest.raises(RequestError, match=problem):
                engine.submit(one)
        assert plain.num_requests == 0


def test_answer_that_ends_early_says_that_its_drafts_were_not_told() -> None:
    """No rounds at all, without a word, looked as if nothing had been drafted."""
    long = request(stopping=StopParams(max_tokens=500), mtp=4)
    with run_engine(token_s=0.01, num_spec_tokens=4) as drafting, run_fleet(drafting) as engine:
        stream = engine.submit(long)
        while stream.num_ready < 9:
            engine.step()
        stream.take(9)
        engine.cancel(stream, FinishReason.STOP)
        report = stream.report()
        assert report.stats.rounds == 0
        assert report.explanation.endswith("It ended before the engine told what was accepted.")


def _wait_for(holds: object, deadline_s: float = 10.0) -> None:
    end_s = time.monotonic() + deadline_s
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < end_s
        time.sleep(0.01)
