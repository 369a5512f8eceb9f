"""Exactness through the whole server: what a request gets does not depend on who else is there."""

import asyncio
import json
import random
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from headlong.llm import LLM
from live_server import ONE_THREAD, LiveServer, serve

SUBJECTS = ("the sea", "a lighthouse", "JSON", "Python lists", "tea", "the number 12", "rain")
SYSTEM = "You are a careful assistant who answers in full sentences. " * 3


def make_bodies(num: int, seed: int, max_tokens: int) -> list[dict[str, Any]]:
    """Draw requests of every kind: policies, temperatures, lengths, penalties, formats."""
    rng = random.Random(seed)
    bodies: list[dict[str, Any]] = []
    for i in range(num):
        content = f"Tell me about {rng.choice(SUBJECTS)}. " * rng.choice((1, 1, 3, 20))
        messages = [{"role": "user", "content": content}]
        if rng.random() < 0.5:  # a shared beginning, for the prefix cache
            messages.insert(0, {"role": "system", "content": SYSTEM})
        body: dict[str, Any] = {
            "messages": messages,
            "mtp": rng.choice(("auto", "auto", "off", 1, 3, 8)),
            "temperature": rng.choice((0, 0, 0.7, 1.3)),
            "top_p": rng.choice((1, 0.9)),
            "seed": i,
            "max_tokens": rng.randint(1, max_tokens),
            "stream": rng.random() < 0.6,
            "return_token_ids": True,
        }
        body |= rng.choice(({}, {}, {"repetition_penalty": 1.2}, {"stop": ["and", "."]}))
        body |= rng.choice(({}, {}, {}, {"response_format": {"type": "json_object"}}))
        bodies.append(body)
    return bodies


def token_ids_alone(llm: LLM, body: dict[str, Any]) -> tuple[int, ...]:
    """What the Python API gives for the same request, alone and without drafts."""
    names = ("temperature", "top_p", "seed", "max_tokens", "repetition_penalty", "stop")
    options: Any = {name: body[name] for name in names if name in body}
    if "response_format" in body:
        options["response_format"] = body["response_format"]
    return llm.generate(body["messages"], mtp="off", **options).token_ids


async def ask_all(server: LiveServer, bodies: list[dict[str, Any]]) -> list[tuple[int, ...] | None]:
    """Send all requests at once and leave every eighth one early; return token ids."""
    limits = httpx.Limits(max_connections=len(bodies))
    async with httpx.AsyncClient(base_url=server.url, timeout=300, limits=limits) as client:
        asking = [ask(client, body, leaves=i % 8 == 7) for i, body in enumerate(bodies)]
        return await asyncio.gather(*asking)


async def ask(
    client: httpx.AsyncClient, body: dict[str, Any], *, leaves: bool
) -> tuple[int, ...] | None:
    """Return the answer's token ids; None when we left before its end."""
    if not body["stream"]:
        answer = (await client.post("/v1/chat/completions", json=body)).raise_for_status()
        return tuple(answer.json()["choices"][0]["token_ids"])
    token_ids: list[int] = []
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                choice = json.loads(line.removeprefix("data: "))["choices"][0]
                token_ids += choice.get("token_ids", [])
            if leaves and token_ids:
                return None
    return tuple(token_ids)


def check(server: LiveServer, llm: LLM, bodies: list[dict[str, Any]]) -> None:
    """Compare every answer under load with the same one alone."""
    together = asyncio.run(ask_all(server, bodies))
    num_compared = 0
    for body, token_ids in zip(bodies, together, strict=True):
        if token_ids is not None:
            assert token_ids == token_ids_alone(llm, body), body
            num_compared += 1
    assert num_compared >= 0.8 * len(bodies)
    now = server.get("/health").json()
    assert now["num_running"] == now["num_waiting"] == 0


def test_mixed_requests_get_what_they_get_alone(default_llm: LLM, live: LiveServer) -> None:
    check(live, default_llm, make_bodies(10, seed=1, max_tokens=16))


@pytest.mark.slow
def test_64_mixed_requests_in_little_memory(default_llm: LLM, default_model_path: Path) -> None:
    """Memory for a few sequences only: requests are set back and read their prompts anew."""
    limits = ("--kv-bytes", "40MiB", "--max-running", "24", "--prefix-bytes", "8MiB")
    with serve(default_model_path, *limits, environment=ONE_THREAD) as server:
        check(server, default_llm, make_bodies(64, seed=2, max_tokens=96))
        preempted = re.search(
            r"^headlong:preemptions_total (\S+)", server.get("/metrics").text, re.M
        )
        assert preempted is not None
        assert float(preempted[1]) > 0, "memory was not short"
