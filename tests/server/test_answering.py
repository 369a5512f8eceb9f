"""Giving answers over ASGI, message by message: clients that leave, stall or run out of time."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from fastapi import FastAPI
from starlette.types import Message

from headlong.arrays import BoolArray
from headlong.config import MtpMode
from headlong.decode.sampling import Sampler
from headlong.engine.engine import Engine
from headlong.errors import RequestError
from headlong.llm import LLM
from headlong.server.live import FinishedRequest
from headlong.server.service import Service
from headlong.text.grammar_state import GrammarState
from served_model import make_model_app

T = TypeVar("T")
BODY: dict[str, Any] = {"prompt": "hello, hello", "max_tokens": 60, "ignore_eos": True, "seed": 1}


@dataclass
class Wire:
    """One client's connection, which can be cut or blocked."""

    messages: list[Message] = field(default_factory=list)
    is_gone: asyncio.Event = field(default_factory=asyncio.Event)
    is_reading: asyncio.Event = field(default_factory=asyncio.Event)
    reads_first: int = 10**9
    """So many messages pass before the client stops reading."""

    @property
    def status(self) -> int:
        """The answer's status."""
        return int(self.messages[0]["status"])

    @property
    def body(self) -> bytes:
        """What has arrived."""
        return b"".join(message.get("body", b"") for message in self.messages[1:])

    @property
    def events(self) -> list[Any]:
        """What has arrived, as events."""
        data = [event.removeprefix("data: ") for event in self.body.decode().split("\n\n")[:-1]]
        return [json.loads(one) for one in data if one != "[DONE]"]

    async def post(self, app: FastAPI, body: dict[str, Any], path: str = "/v1/completions") -> None:
        """Send a body and take in what comes."""
        parts: list[Message] = [{"type": "http.request", "body": json.dumps(body).encode()}]
        raw = [(b"content-type", b"application/json"), (b"host", b"localhost")]
        scope: dict[str, Any] = {"type": "http", "method": "POST", "headers": raw, "path": path}
        scope |= {"query_string": b"", "http_version": "1.1", "scheme": "http", "root_path": ""}
        scope |= {"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000)}

        async def receive() -> Message:
            if parts:
                return parts.pop()
            await self.is_gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if len(self.messages) >= self.reads_first:
                await self.is_reading.wait()
            self.messages.append(message)

        await app(scope, receive, send)


def run(llm: LLM, work: Callable[[FastAPI], Awaitable[T]], **settings: Any) -> T:
    """Run `work` with a started app; afterwards nothing is left in the engine."""

    async def main() -> T:
        app = make_model_app(llm, **settings)
        async with app.router.lifespan_context(app), asyncio.timeout(30):
            result = await work(app)
            worker = service_of(app).worker
            while worker.num_answers:
                await asyncio.sleep(0.01)
            assert worker.snapshot().num_running == worker.snapshot().num_waiting == 0
            assert app.state.in_flight.num == 0
            return result

    return asyncio.run(main())


def service_of(app: FastAPI) -> Service:
    service: Service = app.state.service
    return service


def record(app: FastAPI) -> FinishedRequest:
    """The newest entry of the books."""
    return service_of(app).live.latest(1)[0]


def test_stream_and_whole_answer_say_the_same(tiny_llm: LLM) -> None:
    async def work(app: FastAPI) -> tuple[Wire, Wire]:
        whole, stream = Wire(), Wire()
        await whole.post(app, BODY)
        await stream.post(app, {**BODY, "stream": True})
        assert record(app).num_completion_tokens == 60
        assert record(app).finish_reason == "length"
        return whole, stream

    whole, stream = run(tiny_llm, work)
    text = json.loads(whole.body)["choices"][0]["text"]
    assert "".join(one["choices"][0]["text"] for one in stream.events) == text
    assert stream.body.endswith(b"data: [DONE]\n\n")
    assert dict(stream.messages[0]["headers"])[b"content-type"].startswith(b"text/event-stream")


@pytest.mark.parametrize("is_stream", [True, False])
def test_client_that_leaves_ends_its_answer(tiny_llm: LLM, is_stream: bool) -> None:
    async def work(app: FastAPI) -> FinishedRequest:
        wire = Wire()
        body = {**BODY, "max_tokens": 230, "stream": is_stream}
        asking = asyncio.create_task(wire.post(app, body))
        while not service_of(app).worker.num_answers:
            await asyncio.sleep(0)
        await asyncio.sleep(0.02)
        wire.is_gone.set()
        await asking
        return record(app)

    ended = run(tiny_llm, work)
    assert ended.finish_reason == "cancelled"
    assert ended.num_completion_tokens < 230


def test_reader_that_stalls_holds_up_neither_engine_nor_others(tiny_llm: LLM) -> None:
    async def work(app: FastAPI) -> tuple[Wire, Wire]:
        slow, other = Wire(reads_first=2), Wire()
        asking = asyncio.create_task(slow.post(app, {**BODY, "stream": True}))
        await other.post(app, BODY)
        worker = service_of(app).worker
        while worker.num_answers:
            await asyncio.sleep(0.01)
        assert worker.snapshot().num_running == 0, "the engine is done with the slow one"
        assert len(slow.messages) == 2
        slow.is_reading.set()
        await asking
        return slow, other

    slow, other = run(tiny_llm, work)
    text = json.loads(other.body)["choices"][0]["text"]
    assert "".join(one["choices"][0]["text"] for one in slow.events) == text
    assert len(slow.messages) < 10, "what had piled up came in few writes"


def test_time_over_is_told_to_a_reader(tiny_llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_down(monkeypatch)

    async def work(app: FastAPI) -> tuple[Wire, Wire, FinishedRequest]:
        whole, stream = Wire(), Wire()
        await whole.post(app, BODY)
        await stream.post(app, {**BODY, "stream": True})
        return whole, stream, record(app)

    whole, stream, ended = run(tiny_llm, work, request_timeout_s=0.3)
    assert whole.status == 504
    assert json.loads(whole.body)["error"]["code"] == "timeout"
    assert stream.status == 200
    assert stream.events[-1]["error"]["code"] == "timeout"
    assert ended.finish_reason == "timeout"
    assert 0 < ended.num_completion_tokens < 60


def test_stalled_reader_is_let_go_when_its_time_is_over(tiny_llm: LLM) -> None:
    """A client that never reads must not hold its answer and its place for ever."""

    async def work(app: FastAPI) -> Wire:
        wire = Wire(reads_first=2)
        await wire.post(app, {**BODY, "stream": True})
        return wire

    assert len(run(tiny_llm, work, request_timeout_s=0.3).messages) == 2


def test_engine_fault_is_a_500_and_the_server_goes_on(
    tiny_llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, faults = Engine.step, ["first", "second"]

    def broken_step(engine: Engine) -> None:
        if faults:
            raise ZeroDivisionError(faults.pop())
        step(engine)

    monkeypatch.setattr(Engine, "step", broken_step)

    async def work(app: FastAPI) -> list[Wire]:
        wires = [Wire(), Wire(), Wire()]
        for wire, is_stream in zip(wires, (False, True, False), strict=True):
            await wire.post(app, {**BODY, "stream": is_stream})
        assert [one.finish_reason for one in service_of(app).live.latest()][1:] == ["error"] * 2
        return wires

    wires = run(tiny_llm, work)
    assert [wire.status for wire in wires] == [500, 500, 200]
    error = json.loads(wires[0].body)["error"]
    assert error["type"] == "server_error"
    assert "ZeroDivisionError" in error["message"]
    assert "second" not in error["message"], "our insides are for the log"


@pytest.mark.parametrize("is_stream", [False, True])
def test_fault_inside_a_pass_is_for_the_log_alone(
    tiny_llm: LLM,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_stream: bool,
) -> None:
    """Guards a fault that the engine contains: nobody else would tell of it."""

    def broken_pick(sampler: Sampler, *given: Any) -> Any:
        raise KeyError("weights at /home/me")

    monkeypatch.setattr(Sampler, "pick", broken_pick)

    async def work(app: FastAPI) -> Wire:
        wire = Wire()
        await wire.post(app, {**BODY, "stream": is_stream})
        return wire

    wire = run(tiny_llm, work)
    assert wire.status == 500
    message = json.loads(wire.body)["error"]["message"]
    assert "KeyError" in message
    assert "/home/me" not in message
    (told,) = [one for one in caplog.records if one.name == "headlong.server.answering"]
    assert told.exc_info is not None
    assert "weights at /home/me" in str(told.exc_info[1])


def test_books_have_the_status_that_was_told(
    tiny_llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schema that nothing fits shows while the answer is made; that is no fault of ours."""

    def lost(sampler: Sampler, *given: Any) -> Any:
        raise RequestError("The grammar cannot be followed.", "Use a simpler one.")

    monkeypatch.setattr(Sampler, "pick", lost)

    async def work(app: FastAPI) -> tuple[int, FinishedRequest]:
        wire = Wire()
        await wire.post(app, BODY)
        return wire.status, record(app)

    status, entry = run(tiny_llm, work)
    assert (status, entry.status, entry.finish_reason) == (400, 400, "error")


@pytest.mark.parametrize("mtp", ["off", 4])
def test_grammar_that_comes_to_its_bounds_keeps_the_text(
    tiny_llm: LLM, monkeypatch: pytest.MonkeyPatch, mtp: MtpMode
) -> None:
    """What has been said by then is the answer: cut, with the reason, streamed and whole."""
    compute = GrammarState._compute_mask

    def bounded(state: GrammarState, token_ids: tuple[int, ...]) -> BoolArray | None:
        return compute(state, token_ids) if len(state._settled) + len(token_ids) < 6 else None

    monkeypatch.setattr(GrammarState, "_compute_mask", bounded)
    schema = {"type": "object", "properties": {"hello": {"const": 1}}, "required": ["hello"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    said = [{"role": "user", "content": "hello"}]
    body = {"messages": said, "response_format": form, "temperature": 0, "mtp": mtp}

    async def work(app: FastAPI) -> tuple[Wire, Wire]:
        whole, stream = Wire(), Wire()
        await whole.post(app, body, "/v1/chat/completions")
        await stream.post(app, {**body, "stream": True}, "/v1/chat/completions")
        return whole, stream

    whole, stream = run(tiny_llm, work)
    answer = json.loads(whole.body)
    text = answer["choices"][0]["message"]["content"]
    deltas = [event["choices"][0]["delta"].get("content") or "" for event in stream.events]
    assert "".join(deltas) == text != ""
    assert answer["usage"]["completion_tokens"] == 7  # the end among them
    for told in (answer, stream.events[-1]):
        assert told["choices"][0]["finish_reason"] == "length"
        assert "The answer is cut. The grammar cannot be followed beyond 6" in told["warnings"][0]
    completion = tiny_llm.generate(said, response_format=form, temperature=0, mtp=mtp)
    assert (completion.text, len(completion.warnings)) == (text, 1)


def test_fault_in_the_middle_ends_the_stream_with_an_error(
    tiny_llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Engine.step
    num_steps = 0

    def broken_step(engine: Engine) -> None:
        nonlocal num_steps
        num_steps += 1
        if num_steps > 8:
            raise ZeroDivisionError
        step(engine)

    monkeypatch.setattr(Engine, "step", broken_step)

    async def work(app: FastAPI) -> Wire:
        wire = Wire()
        await wire.post(app, {**BODY, "stream": True, "mtp": "off"})
        return wire

    wire = run(tiny_llm, work)
    assert wire.status == 200
    assert wire.events[0]["choices"][0]["text"]
    assert wire.events[-1]["error"]["type"] == "server_error"
    assert not wire.messages[-1].get("more_body", False)


def test_books_know_metrics_and_live_view(tiny_llm: LLM) -> None:
    async def work(app: FastAPI) -> str:
        wire = Wire()
        await wire.post(
            app, {**BODY, "n": 2, "stream": True, "stream_options": {"include_usage": True}}
        )
        usage = wire.events[-1]["usage"]
        assert usage["completion_tokens"] == record(app).num_completion_tokens == 120
        assert usage["prompt_tokens"] == record(app).num_prompt_tokens
        assert (record(app).ttft_s or 0) > 0
        assert service_of(app).live.report()["totals"]["tokens"] == 120
        return service_of(app).metrics.render().decode()

    rendered = run(tiny_llm, work)
    assert 'headlong:requests_received_total{kind="completion"} 1.0' in rendered
    assert "headlong:generation_tokens_total 120.0" in rendered


def slow_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every step take a hundredth of a second."""
    step = Engine.step

    def slow_step(engine: Engine) -> None:
        time.sleep(0.01)
        step(engine)

    monkeypatch.setattr(Engine, "step", slow_step)
