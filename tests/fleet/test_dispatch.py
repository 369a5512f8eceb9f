"""Dispatch: whatever an engine does wrong, its request is answered once, elsewhere, or told why."""

from contextlib import ExitStack

import pytest

from engine_faults import Fault
from front_parts import answers, expected, request, run_fleet, step_until_done
from headlong.config import SamplingParams, StopParams
from headlong.engine.request import FinishReason
from headlong.errors import BusyError, EngineDownError, EngineError, GarbledError, RequestError
from headlong.fleet.replica import ReplicaState
from http_engine import run_engine

GREEDY = request()
SAMPLED = request(sampling=SamplingParams(temperature=0.8, seed=3))

BEFORE_THE_FIRST_TOKEN = (
    Fault("cut", at_token=0),
    Fault("reset", at_token=0),
    Fault("half_event", at_token=0),
    Fault("garbage", at_token=0),
    Fault("stall", at_token=0, seconds=60.0),
    Fault("status", status=500),
    Fault("status", status=429, retry_after="0"),
    Fault("content_type"),
    Fault("wrong_index"),
    Fault("beyond_vocabulary", at_token=0),
    Fault("error_event", at_token=0),
)
LATER = tuple(
    Fault(kind, at_token=3, seconds=60.0)
    for kind in ("cut", "reset", "half_event", "garbage", "stall", "beyond_vocabulary")
)


@pytest.mark.parametrize("fault", BEFORE_THE_FIRST_TOKEN, ids=lambda fault: fault.kind)
def test_request_that_fails_before_its_first_token_runs_elsewhere(fault: Fault) -> None:
    with (
        run_engine(choose_fault=lambda number: fault) as bad,
        run_engine() as good,
        run_fleet(bad, good, next_token_s=0.3) as engine,
    ):
        requests = [
            request(*range(3, 4 + number), sampling=SAMPLED.sampling) for number in range(6)
        ]
        streams = [engine.submit(one) for one in requests]
        step_until_done(engine, *streams)
        assert [stream.error for stream in streams] == [None] * 6
        assert {stream.num_ready for stream in streams} == {12}
        assert bad.num_requests > 0
        assert good.num_finished == 6


@pytest.mark.parametrize("fault", LATER, ids=lambda fault: fault.kind)
def test_greedy_answer_that_has_begun_goes_on_elsewhere(fault: Fault) -> None:
    with (
        run_engine(choose_fault=lambda number: fault) as bad,
        run_engine() as good,
        run_fleet(bad, good, next_token_s=0.3) as engine,
    ):
        requests = [request(*range(3, 4 + number)) for number in range(6)]
        assert answers(engine, *requests) == [expected(good, one) for one in requests]
        assert bad.num_requests > 0


def test_time_of_the_first_token_is_not_that_of_the_second_engine() -> None:
    """The answer's `prefill_ms` was negative: it began before it was sent."""
    cut = Fault("cut", at_token=3)
    with (
        run_engine(choose_fault=lambda number: cut if number == 0 else None, token_s=0.01) as only,
        run_fleet(only) as engine,
    ):
        stream = engine.submit(GREEDY)
        step_until_done(engine, stream)
        assert only.num_requests == 2
        assert stream.report().timings.prefill_s > 0


@pytest.mark.parametrize("fault", LATER[:3], ids=lambda fault: fault.kind)
def test_sampled_answer_that_has_begun_is_told(fault: Fault) -> None:
    """It would go on with other dice than it began with."""
    with run_engine(choose_fault=lambda number: fault) as bad, run_fleet(bad) as engine:
        stream = engine.submit(SAMPLED)
        step_until_done(engine, stream)
        assert stream.finish_reason is FinishReason.ERROR
        assert isinstance(stream.error, EngineError)
        assert stream.num_ready == 3
        assert bad.num_requests == 1


def test_answer_that_cannot_go_on_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With nobody else up it waited 30 s for a replica that could not have gone on with it."""
    monkeypatch.setattr("headlong.fleet.health.MAX_FAILURES", 1)
    cut = Fault("cut", at_token=3)
    with run_engine(choose_fault=lambda number: cut) as bad, run_fleet(bad) as engine:
        bad.is_healthy = False
        stream = engine.submit(SAMPLED)
        step_until_done(engine, stream)
        assert isinstance(stream.error, EngineError)
        assert stream.num_ready == 3


def test_request_is_not_tried_on_every_replica() -> None:
    """It may be what breaks them."""
    with ExitStack() as until_end:
        fault = Fault("cut", at_token=0)
        engines = [run_engine(choose_fault=lambda number: fault) for _ in range(5)]
        bad = [until_end.enter_context(one) for one in engines]
        engine = until_end.enter_context(run_fleet(*bad))
        stream = engine.submit(GREEDY)
        step_until_done(engine, stream)
        assert isinstance(stream.error, EngineError)
        assert sum(one.num_requests for one in bad) == 3


def test_what_an_engine_refuses_as_impossible_is_told() -> None:
    fault = Fault("status", status=400)
    with run_engine(choose_fault=lambda number: fault) as strict, run_fleet(strict) as engine:
        stream = engine.submit(GREEDY)
        step_until_done(engine, stream)
        assert isinstance(stream.error, RequestError)
        assert engine.replicas[0].state is ReplicaState.UP


def test_request_waits_for_a_replica_that_is_busy() -> None:
    busy = Fault("status", status=429, retry_after="0")
    with (
        run_engine(choose_fault=lambda number: busy if number < 3 else None) as only,
        run_fleet(only) as engine,
    ):
        assert answers(engine, GREEDY) == [expected(only, GREEDY)]
        assert only.num_requests == 4


def test_request_waits_for_a_replica_that_restarts() -> None:
    with run_engine() as only, run_fleet(only) as engine:
        only.kill()
        stream = engine.submit(GREEDY)
        engine.step()
        only.restart()
        step_until_done(engine, stream)
        assert stream.error is None
        assert tuple(one.pick.token_id for one in stream.take()) == expected(only, GREEDY)


@pytest.mark.parametrize("kind", ["beyond_limit", "behind_end", "extra", "no_end"])
def test_what_comes_beyond_the_answer_is_dropped(kind: str) -> None:
    with run_engine(choose_fault=lambda number: Fault(kind)) as odd, run_fleet(odd) as engine:
        assert answers(engine, GREEDY) == [expected(odd, GREEDY)]


def test_whole_answer_does_not_wait_for_its_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    """It failed after `engine_next_token_s`, though all of it was there."""
    monkeypatch.setattr("headlong.fleet.exchange.STATISTICS_S", 0.1)
    hang = Fault("hang", seconds=60.0)
    with (
        run_engine(choose_fault=lambda number: hang) as odd,
        run_fleet(odd, next_token_s=2.0) as engine,
    ):
        stream = engine.submit(SAMPLED)
        step_until_done(engine, stream)
        assert (stream.error, stream.num_ready) == (None, 12)
        assert odd.num_requests == 1


def test_answer_in_one_piece_may_take_as_long_as_its_tokens() -> None:
    """llama.cpp tells log-probabilities so: long answers were cut at `engine_first_token_s`."""
    scored = request(sampling=SamplingParams(logprobs=1))
    with (
        run_engine(dialect="llama.cpp", token_s=0.1) as only,
        run_fleet(only, next_token_s=0.5) as engine,
    ):
        assert answers(engine, scored) == [expected(only, scored)]
        assert only.num_requests == 1


def test_replica_that_failed_a_request_is_named_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With many of them nobody knew which one sends garbage."""
    fault = Fault("garbage", at_token=0)
    with (
        run_engine(choose_fault=lambda number: fault if number == 0 else None) as only,
        run_fleet(only) as engine,
    ):
        answers(engine, GREEDY)
    (told,) = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert only.url.removeprefix("http://") in told


def test_log_probabilities_that_are_none_are_refused() -> None:
    scored = request(sampling=SamplingParams(logprobs=1), stopping=StopParams(max_tokens=4))
    with run_engine(choose_fault=lambda number: Fault("nan")) as odd, run_fleet(odd) as engine:
        stream = engine.submit(scored)
        step_until_done(engine, stream)
        assert isinstance(stream.error, GarbledError)
        assert stream.num_ready == 0


def test_down_for_too_long_is_told_as_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was told as a failure of the one replica that it had tried: HTTP 500 instead of 503."""
    monkeypatch.setattr("headlong.fleet.dispatch.PATIENCE_S", 0.2)
    with run_engine() as only, run_fleet(only) as engine:
        only.kill()
        stream = engine.submit(GREEDY)
        step_until_done(engine, stream)
        assert isinstance(stream.error, EngineDownError)
        assert "No engine behind this server can take the request now." in stream.error.problem


def test_busy_for_too_long_is_told_as_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headlong.fleet.dispatch.PATIENCE_S", 0.2)
    busy = Fault("status", status=429, retry_after="0")
    with run_engine(choose_fault=lambda number: busy) as only, run_fleet(only) as engine:
        stream = engine.submit(GREEDY)
        step_until_done(engine, stream)
        assert isinstance(stream.error, BusyError)
