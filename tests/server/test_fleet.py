"""`headlong serve --engine vllm`: the whole API over scripted engines, through real sockets."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, expect

from engine_faults import Fault
from headlong.cli.main import main
from headlong.errors import RequestError
from headlong.server.served_fleet import named_replicas, read_key
from headlong.server.settings import ServerSettings
from headlong.text.tokenizer import load_tokenizer
from headlong.weights.checkpoint import open_checkpoint
from http_engine import HttpEngine, run_engine
from live_server import LiveServer, serve
from page_visits import Visits
from scripted_model import ScriptedModel
from talking_model import write_talking_model

PROMPT = "hello"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_talking_model(tmp_path_factory.mktemp("fleet") / "tiny.gguf")


@pytest.fixture(scope="module")
def says(model: Path) -> ScriptedModel:
    """What the engines say: letters, and an end of the text that the tokenizer knows."""
    tokenizer = load_tokenizer(open_checkpoint(model))
    letters = [tokenizer.encode(letter)[-1] for letter in "abcdefghijklmnopqrstuvwxyz"]
    return ScriptedModel(tuple(letters), min(tokenizer.eos_ids), tokenizer.vocab_size)


@pytest.fixture(scope="module")
def expected(model: Path, says: ScriptedModel) -> tuple[int, ...]:
    """The answer to PROMPT."""
    prompt_ids = load_tokenizer(open_checkpoint(model)).encode(PROMPT)
    return says.answer(prompt_ids, 12, {says.eos_id})


@pytest.fixture(scope="module")
def plain(says: ScriptedModel) -> Iterator[HttpEngine]:
    with run_engine(model=says) as engine:
        yield engine


@pytest.fixture(scope="module")
def drafting(says: ScriptedModel) -> Iterator[HttpEngine]:
    with run_engine(model=says, num_spec_tokens=4) as engine:
        yield engine


@pytest.fixture(scope="module")
def server(model: Path, plain: HttpEngine, drafting: HttpEngine) -> Iterator[LiveServer]:
    places = ("--engine-url", plain.url, "--speculative-url", f"{drafting.url}=4")
    with serve(model, "--engine", "vllm", *places) as server:
        _wait_for_all(server)
        yield server


def _wait_for_all(server: LiveServer) -> None:
    deadline_s = time.monotonic() + 60
    while not all(one["takes_requests"] for one in replicas(server)):
        assert time.monotonic() < deadline_s, replicas(server)
        time.sleep(0.1)


def replicas(server: LiveServer) -> Any:
    return server.get("/health").json()["replicas"]


def complete(server: LiveServer, **fields: object) -> Any:
    body = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, "return_token_ids": True}
    answer = server.post("/v1/completions", {**body, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_mtp_names_the_pool_and_not_the_text(
    server: LiveServer, expected: tuple[int, ...], plain: HttpEngine, drafting: HttpEngine
) -> None:
    before = (plain.num_finished, drafting.num_finished)
    off, fixed = complete(server, mtp="off"), complete(server, mtp=4)
    assert (plain.num_finished, drafting.num_finished) == (before[0] + 1, before[1] + 1)
    for answer in (off, fixed):
        assert tuple(answer["choices"][0]["token_ids"]) == expected
    assert fixed["mtp"]["num_accepted"] > 0
    assert fixed["mtp"]["off_reason"] is None
    assert fixed["metrics"]["speculative_decoding"]["num_draft_tokens"] > 0
    assert off["mtp"]["num_drafted"] == 0


def test_other_k_than_there_is_says_so(server: LiveServer) -> None:
    assert "nearest" in complete(server, mtp=2)["mtp"]["bound_reason"]


def test_what_drafting_engines_lack_runs_without_and_says_so(server: LiveServer) -> None:
    answer = complete(server, mtp=4, temperature=0.5, min_p=0.1)
    assert "lack min_p" in answer["mtp"]["off_reason"]


def test_streams_are_what_whole_answers_are(server: LiveServer) -> None:
    text = complete(server)["choices"][0]["text"]
    client = server.client()
    stream = client.completions.create(
        model="default", prompt=PROMPT, max_tokens=12, temperature=0, stream=True
    )
    pieces = [event.choices[0].text for event in stream if event.choices]
    assert "".join(pieces) == text
    assert len(pieces) > 1


def test_stop_strings_end_an_answer_and_its_request(server: LiveServer, plain: HttpEngine) -> None:
    text = str(complete(server)["choices"][0]["text"])
    num_left = plain.num_left
    answer = complete(server, stop=[text[3:5]], mtp="off", max_tokens=400)
    assert answer["choices"][0]["text"] == text[:3]
    assert answer["choices"][0]["finish_reason"] == "stop"
    deadline_s = time.monotonic() + 10
    while plain.num_left == num_left and plain.num_running:
        assert time.monotonic() < deadline_s, "the engine goes on"
        time.sleep(0.01)


def test_several_choices_have_seeds_of_their_own(server: LiveServer) -> None:
    answer = complete(server, n=3, temperature=1.0, seed=5, mtp="off")
    texts = {choice["text"] for choice in answer["choices"]}
    assert len(texts) == 3
    again = complete(server, temperature=1.0, seed=6, mtp="off")
    assert again["choices"][0]["text"] in texts


def test_log_probabilities_are_the_engines_own(server: LiveServer) -> None:
    choice = complete(server, logprobs=2, max_tokens=3)["choices"][0]
    assert choice["logprobs"]["token_logprobs"] == pytest.approx([-0.5108] * 3, abs=1e-3)


def test_answer_that_breaks_its_form_is_no_answer(server: LiveServer) -> None:
    """The scripted engines follow no schema: what they say may not pass for JSON."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    body = {"prompt": PROMPT, "max_tokens": 8, "guided_json": schema}
    answer = server.post("/v1/completions", body)
    assert answer.status_code == 500
    problem = "form that was asked for"
    assert problem in answer.json()["error"]["message"]
    deadline_s = time.monotonic() + 10
    while not any("Request req_" in line and problem in line for line in server.lines):
        assert time.monotonic() < deadline_s, server.lines
        time.sleep(0.05)
    # A traceback through the server says nothing about an engine that is wrong.
    assert not any("traceback" in line.lower() for line in server.lines)


def test_embeddings_are_refused_by_name(server: LiveServer) -> None:
    answer = server.post("/v1/embeddings", {"model": "default", "input": "x"})
    assert answer.status_code == 400
    assert "needs embeddings" in answer.json()["error"]["message"]


def test_health_card_and_metrics_show_every_replica(
    server: LiveServer, plain: HttpEngine, drafting: HttpEngine
) -> None:
    complete(server)
    assert [one["pool"] for one in replicas(server)] == ["plain", "K=4"]
    card = server.get("/headlong/model").json()
    assert [one["name"] for one in card["replicas"]] == [plain.url[7:], drafting.url[7:]]
    assert card["backend"] == "vllm, 2 replicas"
    metrics = server.get("/metrics").text
    labels = f'engine="vllm",pool="K=4",replica="{drafting.url[7:]}"'
    assert f"headlong:replica_up{{{labels}}} 1.0" in metrics
    assert f"headlong:replica_draft_tokens_total{{{labels}}}" in metrics


def test_page_shows_replicas_and_what_their_engines_drafted(
    server: LiveServer, browser: Browser, drafting: HttpEngine
) -> None:
    visits = Visits(browser, server.url)
    page = visits.open()
    expect(page.locator("#card")).to_contain_text(f"{drafting.url[7:]}vllm · K=4 · up")
    described = page.evaluate(
        """async () => {
            const sources = await import("/page/sources.js");
            const token = { source: "engine", depth: 2 };
            return [sources.colourKey(token), sources.describeSource(token)];
        }"""
    )
    assert described == ["head-2", "Drafted by its engine, depth 2"]
    visits.close()
    assert visits.complaints == []


def test_failed_probe_is_seen_everywhere(
    model: Path, plain: HttpEngine, says: ScriptedModel, browser: Browser, expected: tuple[int, ...]
) -> None:
    """It samples from another distribution while it drafts, and is well otherwise."""
    fault = Fault("uniform")
    with run_engine(model=says, num_spec_tokens=4, choose_fault=lambda number: fault) as wrong:
        places = ("--engine-url", plain.url, "--speculative-url", f"{wrong.url}=4")
        with serve(model, "--engine", "vllm", *places) as server:
            _wait_for_all(server)
            health = next(one for one in replicas(server) if one["pool"] == "K=4")
            assert "Mean log-probability at temperature 0.7" in " ".join(health["refused"])
            deadline_s = time.monotonic() + 10
            while not any("failed the probe: sampled text" in line for line in server.lines):
                assert time.monotonic() < deadline_s, server.lines
                time.sleep(0.05)
            metrics = server.get("/metrics").text
            labels = f'{{engine="vllm",pool="K=4",replica="{wrong.url[7:]}"}}'
            assert f"headlong:replica_probe_failures{labels} 1.0" in metrics
            visits = Visits(browser, server.url)
            expect(visits.open().locator("#card")).to_contain_text("Mean log-probability")
            visits.close()
            sampled = complete(server, mtp=4, temperature=0.7)
            assert "sampled text with drafts failed the probe" in sampled["mtp"]["off_reason"]
            assert sampled["mtp"]["num_drafted"] == 0
            greedy = complete(server, mtp=4)
            assert tuple(greedy["choices"][0]["token_ids"]) == expected
            assert greedy["mtp"]["num_drafted"] > 0


def test_server_that_stops_lets_answers_end(model: Path, says: ScriptedModel) -> None:
    with run_engine(model=says, token_s=0.02) as slow:
        with serve(model, "--engine", "vllm", "--engine-url", slow.url) as server:
            client = server.client()
            stream = client.completions.create(
                model="default", prompt=PROMPT, max_tokens=50, temperature=0, stream=True
            )
            next(iter(stream))
            server.process.terminate()
            reasons = [event.choices[0].finish_reason for event in stream if event.choices]
            assert reasons[-1] == "length"
            assert server.process.wait(20) == 0
        assert (slow.num_finished, slow.num_left) == (1, 0)


def test_server_without_an_engine_that_answers_ends_with_the_reason(
    model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    nowhere = "http://127.0.0.1:9"
    argv = ["serve", str(model), "--port", "0", "--engine", "vllm", "--engine-url", nowhere]
    assert main([*argv, "--engine-start-s", "0.5"]) != 0
    assert "127.0.0.1:9 does not answer" in capfd.readouterr().err


def test_replica_that_dies_is_shown_and_not_felt(
    server: LiveServer, plain: HttpEngine, expected: tuple[int, ...]
) -> None:
    plain.kill()
    try:
        for mtp in ("off", "auto"):
            token_ids = complete(server, mtp=mtp)["choices"][0]["token_ids"]
            assert tuple(token_ids) == expected
        deadline_s = time.monotonic() + 20
        while replicas(server)[0]["state"] != "down":
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        assert plain.url[7:] in replicas(server)[0]["problem"]
        assert httpx.get(f"{server.url}/health").status_code == 200
    finally:
        plain.restart()


def test_an_engine_is_named_once(model: Path) -> None:
    url = "http://127.0.0.1:9"
    settings = ServerSettings(engine="vllm", engine_url=(url,), speculative_url=(f"{url}/v1/=4",))
    with pytest.raises(RequestError, match=f"engine at {url} is named twice"):
        list(named_replicas(settings, load_tokenizer(open_checkpoint(model))))


@pytest.mark.parametrize("text", ["", "one\ntwo\n", "ключ", "two words"])
def test_file_without_one_key_is_refused(tmp_path: Path, text: str) -> None:
    """It went into a header as it was: other lines became headers of their own."""
    file = tmp_path / "key"
    file.write_text(text)
    with pytest.raises(RequestError, match="does not hold one key"):
        read_key(str(file))
    file.write_text("sk-1\n")
    assert read_key(str(file)) == "sk-1"
