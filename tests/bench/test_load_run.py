"""A load asks what it should, when it should, and tells every ending apart."""

import asyncio
import time
from itertools import islice
from typing import Any

import pytest

from bench_parts import make_prompt, make_question
from headlong.bench.http_side import HttpSide
from headlong.bench.load_run import (
    MAX_OPEN,
    Ending,
    LoadClient,
    LoadLevel,
    LoadLog,
    LoadPlan,
    RequestRecord,
    make_questions,
    run_load,
)
from headlong.bench.measure import Question, Run
from headlong.errors import RequestError
from load_parts import ScriptedClient, endings, make_asked, make_load_plan
from other_server import run_other_server

QUESTION = make_question(make_prompt(1))


def ask(url: str, body: dict[str, Any] | None = None) -> RequestRecord:
    """Ask once."""
    side = HttpSide("auto", f"{url}/v1", "m", body or {}, "s3cret")

    async def once() -> RequestRecord:
        client = LoadClient({"auto": side}, 10.0)
        try:
            return await client.ask(QUESTION, "auto")
        finally:
            await client.close()

    try:
        return asyncio.run(once())
    finally:
        side.close()


def test_answer_has_its_times_tokens_and_drafts() -> None:
    with run_other_server() as other:
        asked = ask(other.url, {"mode": "mtp", "mtp": "auto"})
    assert asked.ending == Ending.DONE
    assert asked.run.side == "auto"
    answer = asked.run.answer
    assert answer is not None
    assert answer.num_tokens == len(asked.times_s) == 32
    assert 0 < answer.ttft_s <= answer.total_s
    assert asked.began_s + answer.ttft_s == pytest.approx(asked.times_s[0])
    assert answer.acceptance is not None
    assert other.bodies[0]["mtp"] == "auto"
    assert other.keys == ["Bearer s3cret"]


def test_busy_server_is_not_asked_again() -> None:
    with run_other_server(num_busy=1) as other:
        asked = ask(other.url)
    assert asked.ending == Ending.BUSY
    assert asked.run.answer is None
    assert len(other.bodies) == 1


def test_empty_answer_is_no_failure() -> None:
    """A model may end at once; under load that happens to somebody."""
    with run_other_server() as other:
        asked = ask(other.url, {"mode": "empty"})
    assert asked.ending == Ending.EMPTY


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("broken", "answered 500: out of memory"),
        ("unknown", "answered 404: no such model"),
        ("html", "did not send an event stream"),
        ("unfinished", "ended its answer in the middle"),
        ("cut", "broke off"),
        ("error", "the engine has stopped"),
        ("odd", "a form that is not OpenAI's"),
    ],
)
def test_failures_are_outcomes_with_words(mode: str, words: str) -> None:
    with run_other_server() as other:
        asked = ask(other.url, {"mode": mode})
    assert asked.ending == Ending.FAILED
    assert words in str(asked.run.error)


def test_server_that_is_not_there_is_a_failure() -> None:
    asked = ask("http://127.0.0.1:9")
    assert asked.ending == Ending.FAILED
    assert "cannot be reached" in str(asked.run.error)


async def answer_soon(question: Question, mode: str) -> RequestRecord:
    """Answer after a moment."""
    began_s = time.perf_counter()
    await asyncio.sleep(0.01)
    return make_asked(question, mode, began_s, 0.01)


def run(client: ScriptedClient, plan: LoadPlan) -> LoadLog:
    """Run a load to its end."""
    log = LoadLog()
    asyncio.run(run_load(client, plan, log, lambda one: None))
    return log


def test_modes_take_turns_and_are_asked_the_same() -> None:
    plan = make_load_plan(levels=[LoadLevel(1)], duration_s=0.4)
    log = run(ScriptedClient(answer_soon), plan)
    assert [(one.pair, one.mode) for one in log.slices] == [(0, "off"), (0, "auto")]
    off, auto = ([asked.run.question for asked in one.asked] for one in log.slices)
    shared = min(len(off), len(auto))
    assert shared >= 2
    assert off[:shared] == auto[:shared]


def test_order_of_modes_changes_from_pair_to_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headlong.bench.load_run.SLICE_S", 0.05)
    plan = make_load_plan(levels=[LoadLevel(1)], duration_s=0.4)
    log = run(ScriptedClient(answer_soon), plan)
    assert [one.mode for one in log.slices] == ["off", "auto", "auto", "off"] * 2


def test_slices_are_about_five_seconds() -> None:
    plan = make_load_plan(duration_s=20.0)
    assert (plan.num_pairs, plan.slice_s) == (2, 5.0)
    assert make_load_plan(duration_s=3.0).slice_s == 1.5
    assert make_load_plan(duration_s=3.0, modes=["plain"]).slice_s == 3.0


def test_closed_loop_keeps_so_many_open() -> None:
    client = ScriptedClient(answer_soon)
    log = run(client, make_load_plan(levels=[LoadLevel(3)], duration_s=0.3))
    assert client.most_open == 3
    assert set(endings(log.slices)) == {Ending.DONE}
    for one in log.slices:
        assert one.seconds == pytest.approx(0.15, abs=0.02)


def test_open_loop_does_not_wait_for_answers() -> None:
    async def never_soon(question: Question, mode: str) -> RequestRecord:
        await asyncio.sleep(0.3 if question.max_tokens > 1 else 0)
        return make_asked(question, mode, time.perf_counter(), 0.1)

    client = ScriptedClient(never_soon)
    plan = make_load_plan(levels=[LoadLevel(100, is_open_loop=True)], duration_s=0.4)
    log = run(client, plan)
    first, second = ([asked.run.question.run for asked in one.asked] for one in log.slices)
    assert client.most_open > 5
    assert 5 < len(first) < 60
    shared = min(len(first), len(second))
    assert sorted(first)[:shared] == sorted(second)[:shared]


def test_open_loop_is_bounded_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headlong.bench.load_run.MAX_OPEN", 2)
    assert MAX_OPEN == 512

    async def wait(question: Question, mode: str) -> RequestRecord:
        await asyncio.sleep(0.3 if question.max_tokens > 1 else 0)
        return make_asked(question, mode, time.perf_counter(), 0.1)

    client = ScriptedClient(wait)
    log = run(client, make_load_plan(levels=[LoadLevel(200, True)], duration_s=0.3))
    assert client.most_open == 2
    errors = {asked.run.error for one in log.slices for asked in one.asked}
    assert "2 requests were open already." in errors
    assert log.stopped is None


def test_classes_are_mixed_by_weight() -> None:
    plan = make_load_plan(weights={"agents": 3.0, "chat": 1.0})
    questions = list(islice(make_questions(plan, 0), 400))
    num_agents = sum(question.prompt.task == "agents" for question in questions)
    assert 270 < num_agents < 330
    assert len({question.run for question in questions}) == 400
    assert questions == list(islice(make_questions(plan, 0), 400))
    assert questions != list(islice(make_questions(plan, 1), 400))
    assert {q.prompt.name for q in questions if q.prompt.task == "chat"} == {
        f"chat:{n}" for n in range(4)
    }


def test_dead_server_ends_the_load_and_keeps_what_was_heard() -> None:
    num_asked = 0

    async def die(question: Question, mode: str) -> RequestRecord:
        nonlocal num_asked
        num_asked += question.max_tokens > 1
        if num_asked > 5:
            run = Run(mode, question, 0, error="Broke off.")
            return RequestRecord(run, Ending.FAILED, time.perf_counter())
        return await answer_soon(question, mode)

    log = run(
        ScriptedClient(die), make_load_plan(levels=[LoadLevel(2), LoadLevel(4)], duration_s=60.0)
    )
    assert log.stopped == "the server no longer answers (Broke off)"
    assert len(log.slices) == 1
    assert endings(log.slices).count(Ending.DONE) == 5
    assert 5 <= endings(log.slices).count(Ending.FAILED) <= 10


def test_busy_server_is_left_alone_as_long_as_it_asks() -> None:
    moments = []

    async def turn_away(question: Question, mode: str) -> RequestRecord:
        moments.append(time.perf_counter())
        run = Run(mode, question, 0, error="The server was busy.")
        return RequestRecord(run, Ending.BUSY, time.perf_counter(), wait_s=0.1)

    client = ScriptedClient(turn_away)
    log = run(client, make_load_plan(levels=[LoadLevel(1)], duration_s=0.6, modes=["plain"]))
    assert log.stopped is None
    assert 2 <= len(log.slices[0].asked) <= 7


def test_prompt_that_cannot_be_asked_is_said_before_the_load() -> None:
    async def refuse(question: Question, mode: str) -> RequestRecord:
        return RequestRecord(Run(mode, question, 0, error="No tools here."), Ending.FAILED, 0.0)

    with pytest.raises(RequestError, match="Before the load began, agents:0 failed: No tools"):
        run(ScriptedClient(refuse), make_load_plan())


def test_cancelling_keeps_the_slice_in_the_making() -> None:
    log, plan = LoadLog(), make_load_plan(levels=[LoadLevel(2)], duration_s=60.0)

    async def stop_soon() -> None:
        task = asyncio.create_task(
            run_load(ScriptedClient(answer_soon), plan, log, lambda one: None)
        )
        await asyncio.sleep(0.4)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(stop_soon())
    (one,) = log.slices
    assert len(one.asked) > 2
    assert 0 < one.seconds < plan.slice_s
