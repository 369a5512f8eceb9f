"""Vectors of texts, through the official clients."""

import math
from typing import Any

import ollama
import openai
import pytest
from openai import OpenAI

from live_server import LiveServer

TEXTS = [
    "The cat sleeps on the warm sofa.",
    "A kitten naps on the couch.",
    "def add(a, b):\n    return a + b",
]


@pytest.fixture(scope="module")
def client(live: LiveServer) -> OpenAI:
    """The client, set up as any user would."""
    return live.client()


def vectors(client: OpenAI, texts: Any, **fields: Any) -> list[list[float]]:
    """Return the vectors of texts."""
    answer = client.embeddings.create(model="default", input=texts, extra_body=fields)
    assert [one.index for one in answer.data] == list(range(len(answer.data)))
    return [one.embedding for one in answer.data]


def similarity(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def test_like_texts_are_closer(client: OpenAI) -> None:
    for pooling in ("mean", "last"):
        cat, kitten, code = vectors(client, TEXTS, pooling=pooling)
        assert math.hypot(*cat) == pytest.approx(1, abs=1e-5)
        assert similarity(cat, kitten) > similarity(cat, code)


def test_vector_depends_on_its_own_text_alone(client: OpenAI, live: LiveServer) -> None:
    together = vectors(client, TEXTS)
    assert [vectors(client, text)[0] for text in TEXTS] == together
    ids = live.post("/tokenize", {"prompt": TEXTS[0]}).json()["tokens"]
    assert vectors(client, ids) == vectors(client, [ids]) == together[:1]
    body = {"input": TEXTS[0], "encoding_format": "float"}
    plain = live.post("/v1/embeddings", body).json()
    assert plain["data"][0]["embedding"] == pytest.approx(together[0], abs=1e-6)
    assert plain["usage"] == {"prompt_tokens": len(ids), "total_tokens": len(ids)}


def test_ollama_s_client_gets_the_same(client: OpenAI, live: LiveServer) -> None:
    asked = ollama.Client(host=live.url)
    answer = asked.embed("default", TEXTS)
    for one, other in zip(answer.embeddings, vectors(client, TEXTS), strict=True):
        assert list(one) == pytest.approx(other, abs=1e-6)
    asked._client.close()


def test_what_does_not_fit_is_refused(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="at most 64"):
        vectors(client, ["x"] * 65)
    with pytest.raises(openai.BadRequestError, match="tokens"):
        vectors(client, "word " * 9000)
    with pytest.raises(openai.BadRequestError, match="dimensions"):
        client.embeddings.create(model="default", input="x", dimensions=8)
    with pytest.raises(openai.NotFoundError, match="There is no model"):
        client.embeddings.create(model="text-embedding-3", input="x")
