"""Servers behind a URL: what is sent, what is read, and clear words for everything that fails."""

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench_parts import make_prompt, make_question
from headlong.bench import http_side
from headlong.bench.http_side import HttpSide, ServerError, clean_url, find_model
from headlong.bench.measure import Question
from headlong.decode.stats import DecodeStats
from headlong.errors import HeadlongError, RequestError
from other_server import OtherServer, run_other_server

QUESTION = Question(make_prompt(1), 0.7, 6, 0, 42)


@pytest.fixture
def other() -> Iterator[OtherServer]:
    """A server of somebody else's making."""
    with run_other_server() as server:
        yield server


def ask(other: OtherServer, question: Question = QUESTION, **body: Any) -> Any:
    side = HttpSide("A", f"{other.url}/v1", "some-model", body)
    try:
        return side.answer(question)
    finally:
        side.close()


def test_answer_has_text_tokens_and_times(other: OtherServer) -> None:
    other.token_s = 0.02
    answer = ask(other)
    assert answer.text == "tok0 tok1 tok2 tok3 tok4 tok5 "
    assert (answer.num_tokens, answer.is_counted_by_server) == (6, True)
    assert (answer.num_prompt_tokens, answer.num_cached_tokens) == (12, 3)
    assert answer.finish_reason == "length"
    assert answer.ttft_s >= 0.02
    assert answer.total_s >= 0.12
    assert answer.num_pieces == 6
    assert answer.gap_p95_s >= 0.015


def test_connection_serves_all_questions(other: OtherServer) -> None:
    """A stream left before its end costs the connection: times would hold a handshake each."""
    side = HttpSide("A", f"{other.url}/v1", "some-model")
    for _ in range(3):
        side.answer(QUESTION)
    side.close()
    assert len(set(other.clients)) == 1


def test_connection_that_was_idle_is_not_used_again(
    other: OtherServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may have hung up while the other side answered."""
    monkeypatch.setattr(http_side, "IDLE_S", 0.05)
    side = HttpSide("A", f"{other.url}/v1", "some-model")
    for _ in range(2):
        side.answer(QUESTION)
        time.sleep(0.2)
    side.close()
    assert len(set(other.clients)) == 2


def test_bad_goodbye_after_the_end_is_forgiven(other: OtherServer) -> None:
    assert ask(other, mode="rude").num_tokens == 6


def test_prompt_is_read_ahead_where_sides_share_a_server(other: OtherServer) -> None:
    """The side that asks second would find the prompt in the server's cache."""
    side = HttpSide("A", f"{other.url}/v1", "some-model", reads_ahead=True)
    assert side.answer(QUESTION).num_tokens == 6
    side.close()
    assert [body["max_tokens"] for body in other.bodies] == [1, 6]


def test_warm_up_without_text_is_no_failure(other: OtherServer) -> None:
    """Of a tool call that is cut short before its arguments, servers show nothing."""
    with contextlib.closing(HttpSide("A", f"{other.url}/v1", "m", {"mode": "empty"})) as side:
        side.warm_up(QUESTION)
    broken = HttpSide("A", f"{other.url}/v1", "m", {"mode": "broken"})
    with contextlib.closing(broken), pytest.raises(ServerError, match="500"):
        broken.warm_up(QUESTION)


def test_empty_look_ahead_is_no_failure(other: OtherServer) -> None:
    """One token may be half a letter, which no server sends."""
    side = HttpSide("A", f"{other.url}/v1", "m", {"mode": "late"}, reads_ahead=True)
    assert side.answer(QUESTION).num_tokens == 6
    side.close()


def test_request_is_openais(other: OtherServer) -> None:
    ask(other, top_p=0.9, seed=None)
    (body,) = other.bodies
    assert body == {
        "model": "some-model",
        "messages": [{"role": "user", "content": "code prompt 1"}],
        "max_tokens": 6,
        "temperature": 0.7,
        "stream": True,
        "stream_options": {"include_usage": True},
        "top_p": 0.9,
    }
    assert other.paths == ["/v1/chat/completions"]


def test_raw_prompts_go_to_the_completions_route(other: OtherServer) -> None:
    side = HttpSide("A", f"{other.url}/v1", "m", is_raw=True, api_key="s3cret")
    assert side.answer(QUESTION).text.startswith("tok0")
    assert other.paths == ["/v1/completions"]
    assert other.bodies[0]["prompt"] == "code prompt 1"
    assert other.keys == ["Bearer s3cret"]
    assert "s3cret" not in repr(side)
    side.close()


def test_pieces_are_counted_where_usage_is_missing(other: OtherServer) -> None:
    answer = ask(other, mode="no_usage")
    assert (answer.num_tokens, answer.is_counted_by_server) == (6, False)


def test_acceptance_is_read_where_a_server_tells(other: OtherServer) -> None:
    ours = ask(other, mode="mtp")
    assert ours.acceptance == DecodeStats(4, 8, 3, accepted_at_depth=[2, 1])
    assert (ours.prefill_s, ours.prefill_head_s) == (0.09, 0.01)
    assert ask(other, mode="timings").acceptance == DecodeStats(5, 6, 4)
    assert ask(other).acceptance is None


def test_busy_server_is_asked_again(other: OtherServer) -> None:
    other.num_busy = 2
    answer = ask(other)
    assert answer.num_retries == 2
    assert len(other.bodies) == 3


def test_server_that_stays_busy_is_given_up(other: OtherServer) -> None:
    other.num_busy = 100
    with pytest.raises(ServerError, match="answered 429: slow down"):
        ask(other)
    assert len(other.bodies) == 1 + http_side.MAX_RETRIES


def test_wait_for_a_busy_server_is_bounded() -> None:
    def wait_s(header: str | None, num_retries: int = 0) -> float:
        headers = {} if header is None else {"Retry-After": header}
        return http_side.retry_after_s(httpx.Response(429, headers=headers), num_retries)

    assert wait_s("2") == 2.0
    assert wait_s("86400") == http_side.MAX_WAIT_S
    assert wait_s("-5") == 0.0
    assert wait_s("Wed, 21 Oct 2026 07:28:00 GMT") == 0.5
    assert [wait_s(None, n) for n in range(3)] == [0.5, 1.0, 2.0]


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("broken", "answered 500: out of memory"),
        ("unknown", "answered 404: no such model"),
        ("locked", "answered 401: who are you?"),
        ("html", "did not send an event stream but '<html>Hello</html>'"),
        ("whole", "did not send an event stream but"),
        ("cut", "broke off"),
        ("error", "The server broke off: the engine has stopped"),
        ("unfinished", "ended its answer in the middle"),
        ("odd", "events of a form that is not OpenAI's"),
        ("empty", "sent an empty answer"),
    ],
)
def test_everything_that_is_no_answer_is_said(other: OtherServer, mode: str, words: str) -> None:
    with pytest.raises(HeadlongError) as caught:
        ask(other, mode=mode)
    assert words in caught.value.problem
    assert caught.value.remedy


def test_nobody_listening_is_said() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    with pytest.raises(ServerError, match="cannot be reached"):
        HttpSide("A", url, "m").answer(QUESTION)
    with pytest.raises(ServerError, match="cannot be reached"):
        find_model(url, None)


def test_silence_is_given_up(other: OtherServer) -> None:
    other.token_s = 5.0
    side = HttpSide("A", f"{other.url}/v1", "m", timeout_s=0.2)
    with pytest.raises(ServerError, match="did not answer in time"):
        side.answer(QUESTION)
    side.close()


def test_model_is_the_servers_own_unless_named(other: OtherServer) -> None:
    assert find_model(f"{other.url}/v1", None) == "other-model"
    with pytest.raises(ServerError, match="does not say which models it has"):
        find_model(f"{other.url}/v2", None)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("http://host:80", "http://host:80/v1"),
        ("host:8080", "http://host:8080/v1"),
        ("https://host/v1/", "https://host/v1"),
        ("https://host/api/v1/chat/completions", "https://host/api/v1"),
        ("http://[::1]:8080/v1", "http://[::1]:8080/v1"),
    ],
)
def test_addresses_may_be_typed_in_several_ways(typed: str, meant: str) -> None:
    assert clean_url(typed) == meant


@pytest.mark.parametrize("typed", ["", "ftp://host", "http://", "http://me:pw@host"])
def test_bad_addresses_are_refused(typed: str) -> None:
    with pytest.raises(RequestError):
        clean_url(typed)


def test_label_tells_what_is_special() -> None:
    assert HttpSide("A", "http://h/v1", "m").label == "http://h/v1"
    assert HttpSide("B", "http://h/v1", "m", {"mtp": 4}).label == "http://h/v1 (mtp=4)"


def wait_until_healthy(port: int) -> None:
    """Wait for a server that is still loading its model."""
    for _ in range(600):
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200:
                return
        time.sleep(0.2)
    pytest.fail("llama-server did not start")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("llama-server") is None, reason="llama.cpp is not here")
def test_llama_cpp_is_measured(default_model_path: Path) -> None:
    """A server that is really somebody else's."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["llama-server", "-m", str(default_model_path), "--port", str(port), "-t", "1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until_healthy(port)
        url = clean_url(f"127.0.0.1:{port}")
        side = HttpSide("A", url, find_model(url, None), {"cache_prompt": False})
        side.warm_up(QUESTION)
        answer = side.answer(make_question(make_prompt(5)))
        side.close()
    finally:
        process.terminate()
        process.wait(timeout=30)
    assert answer.num_tokens > 1
    assert answer.is_counted_by_server
    assert answer.text
    assert 0 < answer.ttft_s < answer.total_s
