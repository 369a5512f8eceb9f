"""A body that does not fit: one sentence with the field, the value and all it may be."""

from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from headlong.server.app import add_error_handlers
from headlong.server.chat_protocol import ChatBody
from headlong.server.completions import CompletionBody

SAID = {"role": "user", "content": "x"}


@pytest.fixture(scope="module")
def client() -> TestClient:
    """The body models behind routes that do nothing."""
    app = FastAPI()

    @app.post("/chat")
    async def chat(body: ChatBody) -> bool:
        return True

    @app.post("/completions")
    async def completions(body: CompletionBody) -> bool:
        return True

    add_error_handlers(app)
    return TestClient(app)


def error_of(response: Any) -> dict[str, Any]:
    """Return the error of a refusal, which has OpenAI's four fields."""
    assert response.status_code == 400
    error: dict[str, Any] = response.json()["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert error["type"] == "invalid_request_error"
    return error


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"temperature": -1}, "temperature", "is -1. It must be a number from 0 to 2."),
        ({"temperature": "1"}, "temperature", 'is "1". It must be a number from 0 to 2.'),
        ({"temperature": 2.5}, "temperature", "is 2.5. It must be a number from 0 to 2."),
        ({"top_p": -1}, "top_p", "is -1. It must be a number from 0 to 1."),
        ({"n": 17}, "n", "is 17. It must be a whole number from 1 to 16."),
        ({"max_tokens": 0}, "max_tokens", "is 0. It must be a whole number of at least 1."),
        (
            {"seed": 2**64},
            "seed",
            f"is {2**64}. It must be a whole number from {-(2**63)} to {2**63}.",
        ),
        ({"stream": 1}, "stream", "is 1. It must be true or false."),
        ({"stop": ["a", ""]}, "stop[1]", 'is "". It must be a text with at least one character.'),
        ({"stop": 3}, "stop", "or a list of at most 16 items"),
        ({"logit_bias": {"7": 101}}, "logit_bias.7", "is 101. It must be a number from -100 to"),
        ({"logit_bias": {"a": 1}}, "logit_bias", 'has the key "a". Its keys must match ^'),
        ({"functions": []}, "functions", "must be left out (OpenAI's old form: give tools"),
        ({"mtp": 17}, "mtp", 'one of "auto", "off", or a whole number from 1 to 16.'),
        ({"speculative": {}}, "speculative.n_max", "is missing."),
        ({"messages": []}, "messages", "is []. It must be a list of at least 1"),
        ({"messages": [{"role": "usr"}]}, "messages[0].role", 'one of "system", "developer"'),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "is missing. It must be a text"),
        (
            {"messages": [SAID, {"role": "tool", "content": None}]},
            "messages[1].content",
            "is null.",
        ),
        (
            {"messages": [{**SAID, "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].type",
            'is "image_url". It must be "text".',
        ),
        ({"response_format": {"type": "xml"}}, "response_format.type", '"text", or "json_object"'),
        ({"response_format": {}}, "response_format.type", "is missing."),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.name",
            "is missing.",
        ),
        ({"tool_choice": "always"}, "tool_choice", 'one of "none", "auto", "required", or an'),
    ],
)
def test_bad_value_is_named_with_what_is_allowed(
    client: TestClient, fields: dict[str, Any], param: str, says: str
) -> None:
    error = error_of(client.post("/chat", json={"messages": [SAID], **fields}))
    assert error["param"] == param
    assert error["message"].startswith(param)
    assert says in error["message"]


@pytest.mark.parametrize("fields", [{"stop": []}, {"top_p": 0}, {"temperature": 2}])
def test_edges_that_clients_send_are_taken(client: TestClient, fields: dict[str, Any]) -> None:
    assert client.post("/chat", json={"messages": [SAID], **fields}).status_code == 200


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none_are_refused(client: TestClient, value: str) -> None:
    body = f'{{"messages": [{{"role": "user", "content": "x"}}], "temperature": {value}}}'
    headers = {"content-type": "application/json"}
    error = error_of(client.post("/chat", content=body, headers=headers))
    assert error["param"] == "temperature"


def test_misspelled_field_gets_a_hint(client: TestClient) -> None:
    error = error_of(client.post("/chat", json={"messages": [SAID], "tempreature": 1}))
    assert error["code"] == "unknown_field"
    assert error["message"] == "There is no field 'tempreature'. Did you mean 'temperature'?"


def test_unknown_field_deep_inside_is_found(client: TestClient) -> None:
    error = error_of(client.post("/chat", json={"messages": [{**SAID, "mood": "good"}]}))
    assert error["param"] == "messages[0].mood"
    assert "Known are: annotations, audio, content" in error["message"]


def test_missing_field_is_named(client: TestClient) -> None:
    assert error_of(client.post("/completions", json={}))["code"] == "missing_field"


@pytest.mark.parametrize("content", [b"[1", b"\xff", b'{"a": 1'])
def test_broken_json_is_called_so(client: TestClient, content: bytes) -> None:
    headers = {"content-type": "application/json"}
    error = error_of(client.post("/chat", content=content, headers=headers))
    assert error["code"] == "invalid_json"


@pytest.mark.parametrize("content", ["[]", '"text"', "7", "null", ""])
def test_body_that_is_no_object_is_refused(client: TestClient, content: str) -> None:
    headers = {"content-type": "application/json"}
    message = error_of(client.post("/chat", content=content, headers=headers))["message"]
    assert message.startswith("The body is")
    assert "an object with messages" in message


def test_form_data_is_told_to_be_json(client: TestClient) -> None:
    error = error_of(client.post("/chat", data={"a": "b"}))
    assert "application/json" in error["message"]
    assert error["code"] == "invalid_content_type"


def test_long_values_are_cut(client: TestClient) -> None:
    error = error_of(client.post("/chat", json={"messages": [SAID], "n": "x" * 10_000}))
    assert len(error["message"]) < 300


def test_nesting_without_end_is_refused(client: TestClient) -> None:
    body = '{"messages": ' + "[" * 100_000
    headers = {"content-type": "application/json"}
    assert error_of(client.post("/chat", content=body, headers=headers))["code"] == "invalid_json"


def test_half_a_surrogate_pair_is_told_back_safely(client: TestClient) -> None:
    error_of(
        client.post(
            "/chat",
            content=rb'{"messages": "\ud800"}',
            headers={"content-type": "application/json"},
        )
    )
