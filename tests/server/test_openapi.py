"""The OpenAPI document tells the truth: schemathesis sends what it allows and what it forbids."""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import Case, CheckFunction, GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from live_server import LiveServer

NUM_EXAMPLES = 15

ROUTES = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/embeddings"),
    ("POST", "/completion"),
    ("POST", "/apply-template"),
    ("POST", "/api/chat"),
    ("POST", "/api/generate"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{model_id}"),
    ("GET", "/health"),
]

SHORT: dict[str, dict[str, Any]] = {
    "/completion": {"n_predict": 4},
    "/api/chat": {"options": {"num_predict": 4}},
    "/api/generate": {"options": {"num_predict": 4}},
    "/v1/chat/completions": {"max_tokens": 4},
    "/v1/completions": {"max_tokens": 4},
    "/v1/messages": {"max_tokens": 4},
    "/v1/responses": {"max_output_tokens": 4},
}
"""Fields that keep an answer short."""

CASES = [
    (method, path, mode)
    for method, path in ROUTES
    for mode in GenerationMode
    if method == "POST" or mode is GenerationMode.POSITIVE  # nothing about a GET can be wrong
]

bounded = settings(
    max_examples=NUM_EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    database=None,
)


@pytest.fixture(scope="module")
def document(tiny_live: LiveServer) -> Any:
    """The document that a running server publishes."""
    return schemathesis.openapi.from_url(f"{tiny_live.url}/openapi.json")


@pytest.mark.parametrize(("method", "path", "mode"), CASES)
def test_document_and_server_agree(
    tiny_live: LiveServer, document: Any, method: str, path: str, mode: GenerationMode
) -> None:
    operation, statuses = document[path][method], list[int]()

    @bounded
    @given(operation.as_strategy(generation_mode=mode))
    def send(case: Case[Any]) -> None:
        if mode is GenerationMode.POSITIVE and isinstance(case.body, dict):
            case.body.pop("model", None)  # a drawn name is never ours
            case.body |= {"model": "default"} if path.startswith("/api/") else {}
            case.body.pop("previous_response_id", None)
            case.body |= SHORT.get(path, {})
            case.body.pop("max_completion_tokens", None)
        # A token id or a JSON schema may fit the document and be unknown here.
        unknown: list[CheckFunction] = [positive_data_acceptance]
        response = case.call_and_validate(base_url=tiny_live.url, excluded_checks=unknown)
        statuses.append(response.status_code)

    send()
    assert tiny_live.process.poll() is None
    is_allowed = mode is GenerationMode.POSITIVE and "{" not in path
    assert (200 in statuses) == is_allowed, statuses


def test_every_route_and_field_is_described(tiny_live: LiveServer) -> None:
    document = tiny_live.get("/openapi.json").json()
    assert set(document["paths"]) == {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/embeddings",
        "/api/embed",
        "/apply-template",
        "/completion",
        "/infill",
        "/props",
        "/slots",
        "/api/chat",
        "/api/generate",
        "/api/ps",
        "/api/show",
        "/api/tags",
        "/api/version",
        "/v1/models",
        "/v1/models/{model_id}",
        "/v1/responses",
        "/v1/responses/{response_id}",
        "/tokenize",
        "/detokenize",
        "/health",
        "/metrics",
    }
    for path, methods in document["paths"].items():
        for method in methods.values():
            assert method["description"], path
    for name in ("ChatBody", "CompletionBody"):
        for field, schema in document["components"]["schemas"][name]["properties"].items():
            is_plain = field in ("messages", "prompt", "tools", "response_format")
            assert is_plain or schema.get("description"), f"{name}.{field} says nothing"
