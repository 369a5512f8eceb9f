"""llama.cpp's own API on running servers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from live_server import LiveServer, serve
from talking_model import write_talking_model
from tiny_text import infill_changes

GREEDY = {"temperature": 0, "top_k": 0, "top_p": 1, "min_p": 0}


@pytest.fixture(scope="module")
def filler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A tiny model with tokens to fill in the middle with."""
    path: Path = tmp_path_factory.mktemp("filler") / "filler.gguf"
    model = write_talking_model(path, **infill_changes())
    with serve(model, "--backend", "numpy") as server:
        yield server


def completed(server: LiveServer, path: str = "/completion", **fields: Any) -> dict[str, Any]:
    """Return a whole answer."""
    answer = server.post(path, {**GREEDY, "n_predict": 8, **fields})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def test_completion_says_what_openai_s_says(tiny_live: LiveServer) -> None:
    body = {"prompt": "hello", "max_tokens": 8, "temperature": 0}
    plain = tiny_live.post("/v1/completions", body).json()
    answer = completed(tiny_live, prompt="hello", return_tokens=True)
    assert answer["content"] == plain["choices"][0]["text"]
    assert (answer["stop"], answer["stop_type"], answer["prompt"]) == (True, "limit", "hello")
    assert len(answer["tokens"]) == answer["tokens_predicted"] == 8
    assert answer["tokens_evaluated"] == plain["usage"]["prompt_tokens"]
    assert answer["timings"]["predicted_n"] == 8
    ids = tiny_live.post("/tokenize", {"content": "hello"}).json()["tokens"]
    assert tiny_live.post("/detokenize", {"tokens": ids}).json()["content"] == "hello"
    for prompt in (ids, ["hell", *ids[1:]]):
        assert completed(tiny_live, prompt=prompt)["content"] == answer["content"]


@pytest.mark.parametrize("mtp", ["off", "auto", 3])
def test_stream_is_the_whole_answer(tiny_live: LiveServer, mtp: Any) -> None:
    whole = completed(tiny_live, prompt="hello", return_tokens=True)
    body = {**GREEDY, "n_predict": 8, "prompt": "hello", "stream": True, "mtp": mtp}
    text = tiny_live.post("/completion", body).text
    events = [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n") if line]
    assert "".join(event["content"] for event in events) == whole["content"]
    assert [i for event in events for i in event["tokens"]] == whole["tokens"]
    assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]
    assert events[-1]["mtp"]["mode"] == mtp


def test_answers_end_and_follow_what_is_asked(tiny_live: LiveServer) -> None:
    text = completed(tiny_live, prompt="hello")["content"]
    stopped = completed(tiny_live, prompt="hello", stop=["never", text[2:4]])
    assert (stopped["stop_type"], stopped["stopping_word"]) == ("word", text[2:4])
    assert completed(tiny_live, prompt="x", grammar='root ::= "ab"')["content"] == "ab"
    schema = {"const": "yes"}
    assert completed(tiny_live, prompt="x", json_schema=schema)["content"] == '"yes"'
    ended = completed(tiny_live, prompt="x", logit_bias=[[263, 100.0]])
    assert (ended["content"], ended["stop_type"]) == ("", "eos")


def test_gap_is_filled_in(filler: LiveServer) -> None:
    answer = completed(filler, "/infill", input_prefix="ab", input_suffix="cd", prompt="x")
    assert answer["prompt"] == "<|fim_prefix|>abx<|fim_suffix|>cd<|fim_middle|>"
    extra = [{"text": "y", "filename": "y.py"}]
    named = completed(filler, "/infill", input_prefix="a", input_suffix="b", input_extra=extra)
    assert named["prompt"].startswith("<|repo_name|>myproject\n<|file_sep|>y.py\ny<|file_sep|>")
    body = {"prompt": "abx", "suffix": "cd", "max_tokens": 8, "temperature": 0}
    openai = filler.post("/v1/completions", body).json()
    assert openai["choices"][0]["text"] == answer["content"]
    ollama = {"model": "default", "prompt": "abx", "suffix": "cd", "stream": False}
    options = {"temperature": 0, "num_predict": 8, "top_k": 0, "top_p": 1}
    filled = filler.post("/api/generate", {**ollama, "options": options}).json()
    assert filled["response"] == answer["content"]
    (pad,) = filler.post("/tokenize", {"prompt": "<|fim_pad|>"}).json()["tokens"]
    gap = {"input_prefix": "a", "input_suffix": "b", "logit_bias": [[pad, 100.0]]}
    ended = completed(filler, "/infill", **gap)
    assert (ended["content"], ended["stop_type"]) == ("", "eos")


def test_what_cannot_be_done_is_refused(tiny_live: LiveServer, filler: LiveServer) -> None:
    gap = {"input_prefix": "a", "input_suffix": "b"}
    answer = tiny_live.post("/infill", gap)
    assert answer.status_code == 400
    assert "no tokens to fill in the middle" in answer.json()["error"]["message"]
    for body, reason in (
        ({"prompt": [1, 2], "suffix": "x"}, "as text"),
        ({"prompt": "a", "input_extra": [{"text": "x"}]}, "without suffix"),
    ):
        answer = filler.post("/v1/completions", body)
        assert answer.status_code == 400
        assert reason in answer.json()["error"]["message"]
    assert filler.post("/completion", {"prompt": "a", "n_predict": 0}).status_code == 400


def test_server_tells_what_it_has(tiny_live: LiveServer) -> None:
    props = tiny_live.get("/props").json()
    assert props["eos_token"] == "<|im_end|>"
    assert "im_start" in props["chat_template"]
    slots = tiny_live.get("/slots").json()
    assert len(slots) == props["total_slots"]
    assert {slot["is_processing"] for slot in slots} == {False}
    body = {"messages": [{"role": "user", "content": "hi"}]}
    written = tiny_live.post("/apply-template", body).json()["prompt"]
    assert written == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_fields_without_effect_are_named(tiny_live: LiveServer) -> None:
    answer = completed(tiny_live, prompt="x", mirostat=2, n_probs=3)
    named = ["mirostat has no effect here.", "n_probs has no effect here."]
    assert answer["warnings"] == named
