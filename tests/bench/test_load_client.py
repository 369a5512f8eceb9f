"""One request of a load against a server of somebody else's making, and its failures."""

import asyncio
from typing import Any

import pytest

from bench_parts import make_prompt, make_question
from headlong.bench.http_side import HttpSide
from headlong.bench.load_client import Asked, Ending, LoadClient
from other_server import run_other_server

QUESTION = make_question(make_prompt(1))


def ask(url: str, body: dict[str, Any] | None = None) -> Asked:
    """Ask once."""
    side = HttpSide("auto", f"{url}/v1", "m", body or {}, "s3cret")

    async def once() -> Asked:
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
