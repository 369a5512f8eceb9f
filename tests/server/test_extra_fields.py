"""The usual extra fields of vLLM and llama.cpp, on a running server."""

import json
import re
from typing import Any

import pytest

from headlong.server.protocol import GenerateBody
from live_server import LiveServer

SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
HELLO = {"role": "user", "content": "hello"}
CLOSED = {**SCHEMA, "additionalProperties": False}


def chat(server: LiveServer, **fields: Any) -> str:
    """Return what the model answers."""
    body = {"messages": [HELLO], "max_tokens": 60, **fields}
    answer = server.post("/v1/chat/completions", body).json()
    assert "choices" in answer, answer
    return str(answer["choices"][0]["message"]["content"])


def refusal(server: LiveServer, **fields: Any) -> dict[str, Any]:
    """Return the error of what must be refused."""
    answer = server.post("/v1/completions", {"prompt": "hello", **fields})
    assert answer.status_code == 400
    error: dict[str, Any] = answer.json()["error"]
    return error


@pytest.mark.parametrize("mtp", ["off", 4])
def test_answers_follow_their_guide(tiny_live: LiveServer, mtp: Any) -> None:
    assert set(json.loads(chat(tiny_live, guided_json=CLOSED, mtp=mtp))) == {"a"}
    assert set(json.loads(chat(tiny_live, guided_json=json.dumps(CLOSED), mtp=mtp))) == {"a"}
    assert re.fullmatch("[0-9]{2,4}", chat(tiny_live, guided_regex="[0-9]{2,4}", mtp=mtp))
    assert chat(tiny_live, guided_choice=["yes", "no"], mtp=mtp) in ("yes", "no")
    grammar = 'root ::= "x" [0-9]'
    assert re.fullmatch("x[0-9]", chat(tiny_live, guided_grammar=grammar, mtp=mtp))
    for guide in ({"regex": "ab?"}, {"choice": ["ab"]}, {"grammar": 'root ::= "ab"'}):
        assert chat(tiny_live, structured_outputs=guide, mtp=mtp) in ("a", "ab")


def test_plain_completions_are_guided_as_well(tiny_live: LiveServer) -> None:
    body = {"prompt": "hello", "guided_regex": "[a-c]{3}", "max_tokens": 9}
    text = tiny_live.post("/v1/completions", body).json()["choices"][0]["text"]
    assert re.fullmatch("[a-c]{3}", text)


def test_guides_that_disagree_are_refused(tiny_live: LiveServer) -> None:
    both = refusal(tiny_live, guided_regex="a", structured_outputs={"choice": ["a"]})
    assert "by regex and choice" in both["message"]
    assert "JSON" in refusal(tiny_live, guided_json="[1]")["message"]
    assert "cannot be compiled" in refusal(tiny_live, guided_regex="((")["message"]
    body: dict[str, Any] = {"messages": [HELLO], "guided_regex": "a"}
    body["response_format"] = {"type": "json_object"}
    answer = tiny_live.post("/v1/chat/completions", body)
    assert "Keep one" in answer.json()["error"]["message"]


def test_min_tokens_hold_the_end_back(tiny_live: LiveServer) -> None:
    path, bias = "/v1/chat/completions", {"263": 100}
    ends = {"messages": [HELLO], "logit_bias": bias, "max_tokens": 12, "temperature": 0}
    short = tiny_live.post(path, ends).json()
    assert short["usage"]["completion_tokens"] == 1
    assert short["choices"][0]["finish_reason"] == "stop"
    texts = set()
    for mtp in ("off", "auto", 3):
        longer = tiny_live.post(path, {**ends, "min_tokens": 5, "mtp": mtp}).json()
        assert longer["usage"]["completion_tokens"] == 6
        texts.add(longer["choices"][0]["message"]["content"])
    assert len(texts) == 1


def test_prompt_is_not_cached_when_told_so(tiny_live: LiveServer) -> None:
    body = {"prompt": "a text of its own that nobody else asks " * 3, "max_tokens": 2}
    cached = []
    for fields in ({"cache_prompt": False}, {"cache_prompt": False}, {}, {"cache_prompt": True}):
        usage = tiny_live.post("/v1/completions", {**body, **fields}).json()["usage"]
        cached.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert cached[:3] == [0, 0, 0]
    assert cached[3] > 0


def test_echo_tells_how_likely_the_prompt_was(tiny_live: LiveServer) -> None:
    """What lm-eval asks: ids in, a log-probability for each but the first, and one token more."""
    ids = tiny_live.post("/tokenize", {"prompt": "hello you"}).json()["tokens"]
    body = {"prompt": [ids, ids[:1]], "max_tokens": 1, "logprobs": 1, "echo": True}
    answers = [
        tiny_live.post("/v1/completions", {**body, "temperature": 0, "mtp": mtp}).json()
        for mtp in ("off", "auto", 2)
    ]
    whole, single = (one["logprobs"] for one in answers[0]["choices"])
    assert whole["token_logprobs"][0] is whole["top_logprobs"][0] is None
    assert len(whole["token_logprobs"]) == len(whole["tokens"]) == len(ids) + 1
    assert len(single["token_logprobs"]) == 2
    assert all(one < 0 for one in whole["token_logprobs"][1:])
    assert "".join(whole["tokens"][:-1]) == "hello you"
    for one, top in zip(whole["token_logprobs"][1:], whole["top_logprobs"][1:], strict=True):
        assert max(top.values()) >= one
    for other in answers[1:]:
        assert [one["logprobs"] for one in other["choices"]] == [whole, single]
    # The score of a token is what the model gave it when it was asked to go on from there.
    begun = {"prompt": ids[:-1], "max_tokens": 1, "logprobs": 1, "temperature": 0}
    best = tiny_live.post("/v1/completions", begun).json()["choices"][0]["logprobs"]
    assert whole["top_logprobs"][-2].items() >= best["top_logprobs"][0].items()


def test_every_guide_has_a_form() -> None:
    given = {"guided_regex": "a", "guided_json": {}, "guided_choice": ["a"], "guided_grammar": "a"}
    kinds = {
        (GenerateBody.model_validate({name: value}).guided_format() or {})["type"]
        for name, value in given.items()
    }
    assert kinds == {"regex", "json_schema", "choice", "grammar"}
