"""Engines elsewhere, scripted: real sockets, vLLM's or llama.cpp's words, faults on demand.

An engine runs in a thread (`run_engine`) or in a process of its own
(`python http_engine.py --port 8001`). What it says is reckoned by a `ScriptedModel`, so whoever
asks knows the right answer. Faults are chosen for each request by its number.
"""

import argparse
import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from engine_faults import FAULTS, Fault
from engine_socket import Exchange, reset
from engine_wire import WIRES, Said
from scripted_model import ScriptedModel


def _healthy(number: int) -> Fault | None:
    return None


@dataclass(eq=False)
class HttpEngine:
    """One engine: what it says and how it fails; counters of what it has seen."""

    model: ScriptedModel = field(default_factory=ScriptedModel)
    dialect: str = "vllm"
    model_name: str = "scripted"
    num_spec_tokens: int = 0
    """Tokens drafted a round; 0 is a plain engine."""
    token_s: float = 0.0
    """Seconds for each round."""
    choose_fault: Callable[[int], Fault | None] = _healthy
    """Says what goes wrong with the n-th request, from 0."""
    context_length: int = 4096
    is_healthy: bool = True
    port: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    """The last requests."""
    num_requests: int = 0
    num_finished: int = 0
    num_running: int = 0
    token_ids: tuple[int, ...] | None = None
    """What it says the tokens of any text are; None where it has no path for that."""
    models: str | None = None
    """What it says its models are; None for the truth."""
    num_left: int = 0
    """Answers whose reader went away."""
    num_sampled: int = 0
    """Answers in the making that are sampled."""
    num_drafted: int = 0
    num_accepted: int = 0
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def kill(self) -> None:
        """Cut every connection and refuse new ones, as a process that dies would."""
        self._call(self._stop())

    def restart(self) -> None:
        """Listen again at the same port."""
        self._call(self.listen())

    def _call(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=10)

    async def listen(self) -> None:
        """Begin to listen."""
        self._server = await asyncio.start_server(
            self._converse, "127.0.0.1", self.port, reuse_address=True, backlog=512
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            reset(writer)
        await asyncio.sleep(0)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        self._writers.add(writer)
        with contextlib.suppress(
            ConnectionError, asyncio.IncompleteReadError, asyncio.TimeoutError
        ):
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                method, path, _ = head.split(" ", 2)
                length = [line for line in head.lower().split("\r\n") if "content-length:" in line]
                data = await reader.readexactly(int(length[0].split(":")[1])) if length else b""
                await self._answer(Exchange(reader, writer), method, path, data)
        self._writers.discard(writer)
        writer.close()

    async def _answer(self, exchange: Exchange, method: str, path: str, data: bytes) -> None:
        wire = WIRES[self.dialect]
        if path == wire.path and method == "POST":
            await self._generate(exchange, json.loads(data))
        elif path == "/health":
            await exchange.send(200 if self.is_healthy else 503, "{}")
        elif path == "/v1/models":
            is_llama, num = self.dialect == "llama.cpp", self.context_length
            size = {"meta": {"n_ctx": num}} if is_llama else {"max_model_len": num}
            about = {"id": self.model_name, **size}
            listed = json.dumps({"object": "list", "data": [about]})
            await exchange.send(200, listed if self.models is None else self.models)
        elif path == "/tokenize" and self.token_ids is not None:
            await exchange.send(200, json.dumps({"tokens": self.token_ids}))
        elif path == "/metrics":
            counts = {"drafted": self.num_drafted, "accepted": self.num_accepted}
            text = wire.metrics.format(running=self.num_running, **counts)
            await exchange.send(200, text, "text/plain")
        else:
            await exchange.send(404, '{"error":{"message":"nothing here","code":404}}')

    async def _generate(self, exchange: Exchange, body: dict[str, Any]) -> None:
        fault = self.choose_fault(self.num_requests)
        self.num_requests += 1
        self.bodies = [*self.bodies[-99:], body]
        kind = "" if fault is None else fault.kind
        problem = self._problem(body)
        if kind == "status" and fault is not None:
            error = json.dumps({"error": {"message": "scripted", "code": fault.status}})
            await exchange.send(fault.status, error, retry_after=fault.retry_after)
        elif kind == "content_type":
            await exchange.send(200, "<html>Welcome to the proxy</html>", "text/html")
        elif problem is not None:
            refusal = {"message": problem, "type": "BadRequestError", "param": None, "code": 400}
            await exchange.send(400, json.dumps({"error": refusal}))
        else:
            is_sampled = bool(body.get("temperature", 1))
            self.num_running += 1
            self.num_sampled += is_sampled
            try:
                await _Answer(self, exchange, body, fault).give()
            except ConnectionError:
                self.num_left += 1
                raise
            finally:
                self.num_running -= 1
                self.num_sampled -= is_sampled

    def _problem(self, body: dict[str, Any]) -> str | None:
        """Return why an engine would refuse the request."""
        prompt = body.get(WIRES[self.dialect].prompt_key)
        if not isinstance(prompt, list) or not prompt:
            return "prompt must be a list of token ids"
        if max(prompt) >= self.model.vocab_size:
            return f"Token id {max(prompt)} is out of vocabulary"
        if len(prompt) >= self.context_length:
            return f"This model's maximum context length is {self.context_length} tokens."
        if body.get("stream") and body.get("prompt_logprobs") is not None:
            return "`prompt_logprobs` are not available when `stream=True`."
        return None


class _Answer:
    """One answer in the making."""

    def __init__(
        self, engine: HttpEngine, exchange: Exchange, body: dict[str, Any], fault: Fault | None
    ) -> None:
        self._engine, self._exchange, self._body = engine, exchange, body
        self._wire = WIRES[engine.dialect]
        self._fault = fault
        self._said = Said()

    async def give(self) -> None:
        """Compute the answer and send it as it comes."""
        rounds = self._rounds()
        if not self._body.get("stream"):
            tokens = []
            async for group in rounds:
                tokens += group
            whole = self._wire.whole(self._engine.model, self._body, tokens, self._said)
            self._engine.num_finished += 1
            await self._exchange.send(200, whole)
            return
        await self._exchange.begin()
        async for group in rounds:
            event = self._wire.token(self._engine.model, self._body, group, self._said.finish)
            await self._exchange.event(self._spoil(event))
        # Counted before the other side can know of it, for tests that look when it does.
        self._engine.num_finished += 1
        if self._is("no_end"):
            await self._exchange.finish()
            return
        if self._fault is not None and self._is("hang"):
            await asyncio.sleep(self._fault.seconds)
        if self._is("behind_end"):
            await self._exchange.event(
                self._wire.token(self._engine.model, self._body, [(5, 0)], None)
            )
        speculates = self._engine.num_spec_tokens > 0
        for event in self._wire.ending(self._body, self._said, speculates):
            await self._exchange.event(event)
        await self._exchange.finish()

    async def _rounds(self) -> AsyncIterator[list[tuple[int, int]]]:
        """Yield the tokens of each round with the states before them."""
        engine, said, wire = self._engine, self._said, self._wire
        room = engine.context_length - len(self._body[wire.prompt_key])
        most = min(wire.max_tokens(self._body), room) + 2 * self._is("beyond_limit")
        ends = wire.ends(self._body, engine.model.eos_id)
        words = self._words(ends)
        while said.finish is None:
            await self._disturb(len(said.token_ids))
            num, group = 1, []
            if engine.num_spec_tokens and said.token_ids:
                num += (7 * len(said.token_ids)) % (engine.num_spec_tokens + 1)
                said.drafted.append(engine.num_spec_tokens)
                said.accepted.append(num - 1)
                engine.num_drafted += engine.num_spec_tokens
                engine.num_accepted += num - 1
            for _ in range(num):
                group.append(next(words))
                said.token_ids.append(group[-1][0])
                if group[-1][0] in ends:
                    said.finish = "stop"
                elif len(said.token_ids) >= most:
                    said.finish = "length"
                if said.finish is not None:
                    break
            yield group

    def _words(self, ends: set[int]) -> Iterator[tuple[int, int]]:
        """Yield the tokens that it says, wrong ones where it lies."""
        body, model = self._body, self._engine.model
        held = body.get("min_tokens", 0) if ends else 1 << 30
        tokens = model.tokens(
            body[self._wire.prompt_key],
            temperature=0 if self._engine_is_greedy() else 1,
            seed=body.get("seed") or 0,
            held=held,
        )
        for number, (token_id, state) in enumerate(tokens):
            late = self._fault is not None and number >= self._fault.at_token
            if late and self._is("lie"):
                token_id = model.likely(state, can_end=False)[1]
            if self._is("mixed") and self._engine_is_greedy() and self._engine.num_sampled:
                token_id = model.likely(state, can_end=False)[1]
            if self._is("uniform") and not self._engine_is_greedy():
                token_id = model.words[(state * 31) % len(model.words)]
            if late and self._is("beyond_vocabulary"):
                token_id = model.vocab_size + 5
            yield token_id, state

    def _engine_is_greedy(self) -> bool:
        return not self._body.get("temperature", 1)

    async def _disturb(self, num_said: int) -> None:
        """Wait as the engine would, and do what the fault wants before the next token."""
        fault, exchange = self._fault, self._exchange
        seconds = self._engine.token_s + (fault.seconds if fault and self._is("slow") else 0)
        if fault is not None and num_said >= fault.at_token:
            seconds += fault.seconds * self._is("stall")
            self._fault = None if self._is("stall") else fault
            await exchange.break_off(fault.kind)
        await asyncio.sleep(seconds)
        exchange.check_reader()

    def _spoil(self, event: str) -> str:
        """Return an event with what the fault puts into it."""
        if self._is("extra"):
            return json.dumps({**json.loads(event), "new_field": {"deep": [1, 2]}, "usage": None})
        if self._is("wrong_index"):
            return event.replace('"index": 0', '"index": 3')
        if self._is("nan") and self._body.get("logprobs") is not None:
            document = json.loads(event)
            document["choices"][0]["logprobs"]["token_logprobs"][0] = float("nan")
            return json.dumps(document)
        return event

    def _is(self, kind: str) -> bool:
        return self._fault is not None and self._fault.kind == kind


@contextmanager
def run_engine(**settings: Any) -> Iterator[HttpEngine]:
    """Run an engine in a thread for the length of a `with` block."""
    engine = HttpEngine(**settings)
    thread = threading.Thread(target=engine._loop.run_forever, daemon=True)
    thread.start()
    engine.restart()
    try:
        yield engine
    finally:
        engine.kill()
        engine._loop.call_soon_threadsafe(engine._loop.stop)
        thread.join(timeout=10)
        engine._loop.close()


def main() -> None:
    """Run one engine until it is killed; every n-th request goes wrong as it is told."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--words", type=int, nargs=2, default=(3, 259))
    parser.add_argument("--vocab-size", type=int, default=266)
    parser.add_argument("--eos-id", type=int, default=2)
    parser.add_argument("--num-spec-tokens", type=int, default=0)
    parser.add_argument("--token-s", type=float, default=0.0)
    parser.add_argument("--fault", choices=FAULTS)
    parser.add_argument("--fault-every", type=int, default=10)
    parser.add_argument("--fault-s", type=float, default=0.0)
    args, _ = parser.parse_known_args()  # what real engines are told besides means nothing here

    def choose_fault(number: int) -> Fault | None:
        goes_wrong = args.fault and number % args.fault_every == args.fault_every - 1
        return Fault(args.fault, seconds=args.fault_s) if goes_wrong else None

    model = ScriptedModel(tuple(range(*args.words)), args.eos_id, args.vocab_size)
    engine = HttpEngine(
        model,
        num_spec_tokens=args.num_spec_tokens,
        token_s=args.token_s,
        choose_fault=choose_fault,
        port=args.port,
    )
    asyncio.set_event_loop(engine._loop)
    engine._loop.run_until_complete(engine.listen())
    engine._loop.run_forever()


if __name__ == "__main__":
    main()
