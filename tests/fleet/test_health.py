"""Health: what becomes of replicas that fail, die, come back, and come back as another."""

import asyncio
import itertools
import time
from collections.abc import Callable

import httpx
import pytest

from engine_faults import Fault
from front_parts import MODEL, answers, expected, request, run_fleet, step_until_done
from headlong.engine.request import FinishReason
from headlong.errors import EngineDownError, EngineError
from headlong.fleet import fleet
from headlong.fleet.health import TOKEN_TEXT, Health
from headlong.fleet.replica import Replica, ReplicaState
from headlong.fleet.vllm_dialect import VllmDialect
from http_engine import run_engine


def wait_for(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_replica_that_dies_is_down_and_comes_back() -> None:
    with run_engine() as only, run_fleet(only) as engine:
        (replica,) = engine.replicas
        assert replica.state is ReplicaState.UP
        only.kill()
        wait_for(lambda: replica.state is ReplicaState.DOWN)
        assert "does not answer" in str(replica.problem)
        only.restart()
        wait_for(lambda: replica.state is ReplicaState.UP)
        assert replica.problem is None
        assert answers(engine, request()) == [expected(only, request())]


def test_replica_that_says_it_is_unwell_is_down() -> None:
    with run_engine() as only, run_fleet(only) as engine:
        (replica,) = engine.replicas
        only.is_healthy = False
        wait_for(lambda: replica.state is ReplicaState.DOWN)
        assert "HTTP 503" in str(replica.problem)


def test_replica_that_answers_nothing_well_is_down_though_it_says_it_is_well() -> None:
    garbage = Fault("garbage", at_token=0)
    with (
        run_engine(choose_fault=lambda number: garbage) as bad,
        run_engine() as good,
        run_fleet(bad, good) as engine,
    ):
        replica = engine.replicas[0]
        numbers = itertools.cycle(range(3, 250))
        while replica.num_failed < 3:
            answers(engine, request(next(numbers)))
        assert replica.state is ReplicaState.DOWN
        assert replica.num_answered == 0 < good.num_finished


def test_one_failure_makes_a_replica_suspect_and_an_answer_clears_it() -> None:
    cut = Fault("cut", at_token=0)
    with (
        run_engine(choose_fault=lambda number: cut if number == 0 else None) as only,
        run_fleet(only) as engine,
    ):
        (replica,) = engine.replicas
        stream = engine.submit(request())
        step_until_done(engine, stream)
        assert stream.finish_reason is FinishReason.LENGTH
        wait_for(lambda: replica.num_answered == 1)
        assert (replica.num_failed, replica.state) == (1, ReplicaState.UP)


def test_replica_that_changed_its_model_is_kept_out_loudly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with run_engine() as one, run_engine() as two, run_fleet(one, two) as engine:
        one.model_name = "another"
        wait_for(lambda: engine.replicas[0].state is ReplicaState.DOWN)
        assert "now serves 'another' with 4096 tokens" in str(engine.replicas[0].problem)
        assert "now serves 'another'" in caplog.text
        before = one.num_requests
        for number in range(8):
            answers(engine, request(number + 3))
        assert one.num_requests == before
        one.model_name = "scripted"
        wait_for(lambda: engine.replicas[0].state is ReplicaState.UP)


def test_replica_that_goes_down_while_it_is_asked_stays_down() -> None:
    """It was up again at once, without a pause."""
    replica = Replica("http://engine", VllmDialect(), state=ReplicaState.UP)

    def answer(call: httpx.Request) -> httpx.Response:
        if call.url.path == "/health":
            for _ in range(3):
                health.observe_failure(replica, EngineError("It broke off."))
        listed = {"data": [{"id": "scripted"}]}
        return httpx.Response(404 if call.url.path == "/tokenize" else 200, json=listed)

    http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    health = Health([replica], http, MODEL.tokenizer)
    asyncio.run(health.check(replica))
    assert replica.state is ReplicaState.DOWN


def test_replica_that_wants_a_key_says_so() -> None:
    replica = Replica("http://engine", VllmDialect())
    answer = httpx.Response(401)
    http = httpx.AsyncClient(transport=httpx.MockTransport(lambda _: answer))
    asyncio.run(Health([replica], http, MODEL.tokenizer).check(replica))
    assert "--engine-key-file" in str(replica.problem)


def test_replica_of_several_models_needs_the_name_of_one() -> None:
    with (
        run_engine(model_name="scripted") as one,
        pytest.raises(EngineDownError, match="no model 'other'; it has scripted"),
        run_fleet(one, model_name="other", start_s=0.5),
    ):
        raise AssertionError


@pytest.mark.parametrize("dialect", ["vllm", "llama.cpp"])
def test_fleet_has_the_context_of_its_roomiest_replica(dialect: str) -> None:
    sizes = (256, 512)
    with (
        run_engine(dialect=dialect, context_length=sizes[0]) as small,
        run_engine(dialect=dialect, context_length=sizes[1]) as large,
        run_fleet(small, large) as engine,
    ):
        assert tuple(one.max_tokens for one in engine.replicas) == sizes
        assert engine.context_length == max(sizes)


def test_what_a_replica_says_of_its_load_is_read() -> None:
    with run_engine(num_spec_tokens=4) as drafting, run_fleet(drafting) as engine:
        answers(engine, request())
        wait_for(lambda: engine.replicas[0].load.num_drafted == drafting.num_drafted > 0)


@pytest.mark.parametrize("dialect", ["vllm", "llama.cpp"])
def test_engine_with_other_tokens_gets_no_requests(dialect: str) -> None:
    """It would answer, and the answer would be nonsense: its ids mean other words."""
    ours = tuple(MODEL.tokenizer.encode(TOKEN_TEXT))
    with run_engine(dialect=dialect, token_ids=ours) as right, run_fleet(right) as engine:
        assert answers(engine, request()) == [expected(right, request())]
        for wrong in (ours[::-1], (*ours, MODEL.vocab_size)):
            right.kill()
            wait_for(lambda: engine.replicas[0].state is ReplicaState.DOWN)
            right.token_ids = wrong
            right.restart()
            wait_for(lambda: "runs another model" in str(engine.replicas[0].problem))
            assert not engine.replicas[0].is_usable


def test_engine_that_was_wrong_at_first_may_come_back_right() -> None:
    """It was held to the wrong model's name for ever, though the log asked for the right one."""
    ours = tuple(MODEL.tokenizer.encode(TOKEN_TEXT))
    with (
        run_engine(model_name="wrong", token_ids=ours[::-1]) as mistaken,
        run_engine() as right,
        run_fleet(mistaken, right) as engine,
    ):
        replica = engine.replicas[0]
        assert "runs another model" in str(replica.problem)
        mistaken.model_name, mistaken.token_ids = "scripted", ours
        wait_for(lambda: replica.state is ReplicaState.UP)
        assert answers(engine, request()) == [expected(right, request())]


@pytest.mark.parametrize("listed", ["[]", '{"data": 5}', '{"data": [{"id": 7}]}', "<html>"])
def test_what_is_no_list_of_models_is_told(listed: str) -> None:
    """Some of these ended the watch for good, and nobody looked at the replica any more."""
    with run_engine() as odd, run_engine() as right, run_fleet(odd, right) as engine:
        odd.models = listed
        wait_for(lambda: engine.replicas[0].state is ReplicaState.DOWN)
        assert "The engine sent the" in str(engine.replicas[0].problem)
        odd.models = None
        wait_for(lambda: engine.replicas[0].state is ReplicaState.UP)


def test_fleet_says_what_it_waits_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten minutes of silence looked as if the server hung."""
    caplog.set_level("INFO", "headlong.fleet")
    monkeypatch.setattr(fleet, "_TELL_S", 0.2)
    with run_engine() as dead:
        dead.kill()
        with pytest.raises(EngineDownError), run_fleet(dead, start_s=1.0):
            raise AssertionError
        dead.restart()
    waiting = [one.message for one in caplog.records if "Waiting for an engine" in one.message]
    assert waiting
    assert dead.url[7:] in waiting[-1]
