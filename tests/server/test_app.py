"""The app as a whole: what is done before the first request, and when the engine is no more."""

import asyncio
import json
from pathlib import Path

import pytest
from llguidance import LLTokenizer

from asgi_calls import Called, Client
from headlong.engine.engine import Engine
from headlong.llm import LLM
from headlong.server.app import make_app
from headlong.server.chat import plan_chat
from headlong.server.chat_protocol import ChatBody
from headlong.server.settings import ServerSettings
from headlong.text.token_table import make_token_table
from headlong.text.tokenizer import Tokenizer


def test_table_of_tokens_is_there_before_the_first_request(
    tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[Tokenizer]()

    def counted(tokenizer: Tokenizer) -> LLTokenizer:
        made.append(tokenizer)
        return make_token_table(tokenizer)

    monkeypatch.setattr("headlong.text.grammar.make_token_table", counted)
    llm = LLM.load(tiny_model_path, backend="numpy")
    app = make_app(llm, ServerSettings())

    async def start_and_ask() -> None:
        async with app.router.lifespan_context(app):
            assert made == [llm.tokenizer]
            body = {"messages": [{"role": "user", "content": "hello"}]}
            wanted = {**body, "response_format": {"type": "json_object"}}
            assert plan_chat(app.state.service, ChatBody.model_validate(wanted), "auto").asks

    asyncio.run(start_and_ask())
    assert made == [llm.tokenizer]


def test_end_of_the_engine_is_told_to_everybody(
    tiny_llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(tiny_llm, ServerSettings(request_timeout_s=10))
    client = Client(app, {"content-type": "application/json"})
    body = {"prompt": "hello", "max_tokens": 200, "ignore_eos": True, "stream": True}
    part = json.dumps(body).encode()

    def broken(engine: Engine) -> None:
        raise SystemExit("a fault that no step may have")

    async def ask() -> tuple[Called, Called, Called]:
        async with app.router.lifespan_context(app):
            running = Called()
            task = asyncio.create_task(
                client.call("POST", "/v1/completions", [part], called=running)
            )
            while len(running.messages) < 3:
                await asyncio.sleep(0.01)
            monkeypatch.setattr(Engine, "step", broken)
            await task
            refused = await client.call("POST", "/v1/completions", [part])
            return running, refused, await client.call("GET", "/health")

    running, refused, health = asyncio.run(ask())
    last = running.body.decode().strip().split("data: ")[-1]
    assert json.loads(last)["error"]["code"] == "engine_down"
    assert (refused.status, refused.error["code"]) == (503, "engine_down")
    assert health.status == 503
    assert "SystemExit" in json.loads(health.body)["problem"]
