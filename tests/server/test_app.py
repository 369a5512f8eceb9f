"""The app as a whole: what is done before the first request, and when the engine is no more."""

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from llguidance import LLTokenizer

from asgi_calls import Called, Client
from headlong.engine.engine import Engine
from headlong.errors import RequestError
from headlong.llm import LLM
from headlong.server.app import make_app
from headlong.server.chat import prepare_chat
from headlong.server.chat_protocol import ChatBody
from headlong.server.served_model import ServedModel
from headlong.server.settings import ServerSettings
from headlong.text.token_table import make_token_table
from headlong.text.tokenizer import Tokenizer
from scripted_engine import ScriptedEngine
from served_model import make_model_app


def test_table_of_tokens_is_there_before_the_first_request(
    tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[Tokenizer]()

    def counted(tokenizer: Tokenizer) -> LLTokenizer:
        made.append(tokenizer)
        return make_token_table(tokenizer)

    monkeypatch.setattr("headlong.text.grammar.make_token_table", counted)
    settings = ServerSettings()
    llm = LLM.load(tiny_model_path, backend="numpy", limits=settings.engine_limits)
    app = make_app(ServedModel.of_llm(llm), settings)

    async def start_and_ask() -> None:
        async with app.router.lifespan_context(app):
            assert made == [llm.tokenizer]
            body = {"messages": [{"role": "user", "content": "hello"}]}
            wanted = {**body, "response_format": {"type": "json_object"}}
            assert prepare_chat(app.state.service, ChatBody.model_validate(wanted), "auto").choices

    asyncio.run(start_and_ask())
    assert made == [llm.tokenizer]


def test_end_of_the_engine_is_told_to_everybody(
    tiny_llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_model_app(tiny_llm, request_timeout_s=10)
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


def test_server_uses_the_engine_that_was_loaded(tiny_model_path: Path) -> None:
    settings = ServerSettings(max_running=3)
    llm = LLM.load(tiny_model_path, backend="numpy", limits=settings.engine_limits)
    app = make_app(ServedModel.of_llm(llm), settings)
    assert app.state.service.model.engine is llm.engine
    assert app.state.service.model.engine.limits.max_running == 3


def test_limits_the_engine_does_not_have_are_refused(tiny_llm: LLM) -> None:
    """Guards against settings that do nothing: limits belong to the engine, made at loading."""
    with pytest.raises(RequestError, match="kv_bytes None; the settings say 2147483648"):
        make_app(ServedModel.of_llm(tiny_llm), ServerSettings())


def test_server_answers_from_any_engine_client(tiny_llm: LLM) -> None:
    settings = ServerSettings()
    engine = ScriptedEngine(tuple(tiny_llm.encode("elsewhere")), settings.engine_limits)
    app = make_app(ServedModel.of_llm(replace(tiny_llm, engine=engine)), settings)
    client = Client(app, {"content-type": "application/json"})
    part = json.dumps({"prompt": "hello", "return_sources": True}).encode()

    async def ask() -> tuple[Called, Called]:
        async with app.router.lifespan_context(app):
            answer = await client.call("POST", "/v1/completions", [part])
            return answer, await client.call("GET", "/headlong/model")

    answer, card = asyncio.run(ask())
    body = json.loads(answer.body)
    assert body["choices"][0]["text"] == "elsewhere"
    assert {one["source"] for one in body["choices"][0]["sources"]} == {"elsewhere"}
    assert body["usage"]["completion_tokens"] == len(tiny_llm.encode("elsewhere"))
    assert body["mtp"]["explanation"] == "Decided elsewhere."
    assert json.loads(card.body)["backend"] == "elsewhere"


def test_the_app_runs_from_a_checkout_that_is_not_installed(tiny_model_path: Path) -> None:
    """Guards machines where nothing can be installed: a version is not known there."""
    code = """
import importlib.metadata as metadata
find = metadata.version
def version(name):
    if name == "headlong":
        raise metadata.PackageNotFoundError(name)
    return find(name)
metadata.version = version
import sys
from pathlib import Path
from served_model import make_model_app
from headlong.llm import LLM
print(make_model_app(LLM.load(Path(sys.argv[1]), backend="numpy")).version)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", code, str(tiny_model_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "unknown (not installed)"
