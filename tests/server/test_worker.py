"""The worker: one thread, one call into the loop per step, faults that stay where they belong."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from headlong.engine.engine import Engine
from headlong.engine.limits import EngineLimits, EngineSnapshot
from headlong.engine.request import Emitted, FinishReason
from headlong.errors import BusyError, EngineDownError, EngineError, RequestError, StoppingError
from headlong.generation import AnswerReader, Chunk
from headlong.llm import LLM, make_request
from headlong.server.answer_stream import Answer, ChoiceRequest
from headlong.server.worker import HAND_OVER_S, EngineWorker

T = TypeVar("T")
PROMPT = "hello, hello, hello"


def make_choice(llm: LLM, prompt: str = PROMPT, **options: Any) -> ChoiceRequest:
    """Ask for 20 tokens, unless told otherwise."""
    options = {"max_tokens": 20, "ignore_eos": True, "temperature": 0.8, "seed": 5, **options}
    request = make_request(llm.encode(prompt), llm.tokenizer.eos_ids, options)  # type: ignore[arg-type] # by name
    return ChoiceRequest(
        request, AnswerReader(llm.tokenizer, request.stopping.stop, continues_text=True)
    )


def run(
    llm: LLM, work: Callable[[EngineWorker], Awaitable[T]], limits: EngineLimits | None = None
) -> T:
    """Run `work` beside a worker, and stop it."""

    async def main() -> T:
        engine = Engine.for_model(llm.backbone, llm.drafter, limits or EngineLimits())
        worker = EngineWorker(engine)
        worker.start()
        try:
            async with asyncio.timeout(30):
                return await work(worker)
        finally:
            await worker.drain(0)
            assert engine.num_running == engine.num_waiting == 0

    return asyncio.run(main())


async def collect(answer: Answer) -> list[list[Chunk]]:
    """Read an answer to its end."""
    collected: list[list[Chunk]] = [[] for _ in answer.streams]
    while True:
        arrival = await answer.next_arrival()
        for chunks, more in zip(collected, arrival.chunks, strict=True):
            chunks += more
        if arrival.is_last:
            return collected


def text_of(chunks: list[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


def test_answers_are_those_of_the_python_api(tiny_llm: LLM) -> None:
    alone = [
        tiny_llm.generate(PROMPT, max_tokens=20, ignore_eos=True, temperature=0.8, seed=seed)
        for seed in range(4)
    ]

    async def work(worker: EngineWorker) -> list[list[Chunk]]:
        choices = [
            make_choice(tiny_llm, seed=seed, mtp="off" if seed % 2 else 3) for seed in range(4)
        ]
        return await collect(await worker.submit(choices))

    together = run(tiny_llm, work)
    assert [text_of(chunks) for chunks in together] == [one.text for one in alone]
    assert [chunks[-1].finish_reason for chunks in together] == [FinishReason.LENGTH] * 4


def test_steps_share_calls_into_the_loop(tiny_llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    num_steps, num_calls = 0, 0
    step, hand_over = Engine.step, EngineWorker._hand_over

    def counted_step(engine: Engine) -> None:
        nonlocal num_steps
        num_steps += 1
        step(engine)

    def counted_hand_over(worker: EngineWorker, parcels: Any) -> None:
        nonlocal num_calls
        num_calls += 1
        hand_over(worker, parcels)

    monkeypatch.setattr(Engine, "step", counted_step)
    monkeypatch.setattr(EngineWorker, "_hand_over", counted_hand_over)

    async def work(worker: EngineWorker) -> None:
        answers = [await worker.submit([make_choice(tiny_llm)]) for _ in range(6)]
        await asyncio.gather(*map(collect, answers))

    began_s = time.monotonic()
    run(tiny_llm, work)
    assert 0 < num_calls <= num_steps
    num_urgent = 2 * 6  # the first tokens and the ends
    assert num_calls <= num_urgent + (time.monotonic() - began_s) / HAND_OVER_S


def test_idle_thread_takes_no_steps_and_no_time(tiny_llm: LLM) -> None:
    async def work(worker: EngineWorker) -> float:
        await collect(await worker.submit([make_choice(tiny_llm)]))
        before_s = time.process_time()
        await asyncio.sleep(0.5)
        return time.process_time() - before_s

    assert run(tiny_llm, work) < 0.1


def test_stop_string_ends_the_request_in_its_own_round(tiny_llm: LLM) -> None:
    options: Any = {"max_tokens": 60, "ignore_eos": True, "temperature": 0.8, "seed": 5}
    free = tiny_llm.generate(PROMPT, **options).text
    stop = free[10:12]
    alone = tiny_llm.generate(PROMPT, stop=stop, **options)

    async def work(worker: EngineWorker) -> tuple[list[Chunk], int]:
        answer = await worker.submit([make_choice(tiny_llm, max_tokens=60, stop=stop)])
        (chunks,) = await collect(answer)
        return chunks, answer.reports[0].timings.num_tokens

    chunks, num_timed = run(tiny_llm, work)
    assert text_of(chunks) == free[: free.index(stop)]
    assert chunks[-1].finish_reason is FinishReason.STOP
    assert tuple(chunk.token_ids[0] for chunk in chunks) == alone.token_ids
    assert num_timed == len(chunks) - 1, "tokens behind the stop string do not count"


def test_cancelled_answer_leaves_within_a_round(tiny_llm: LLM) -> None:
    async def work(worker: EngineWorker) -> tuple[int, FinishReason | None]:
        answer = await worker.submit([make_choice(tiny_llm, max_tokens=200)])
        await answer.next_arrival()
        answer.cancel()
        await answer.ended()
        num_before = answer.streams[0].tokens.report().num_completion_tokens
        await asyncio.sleep(0.05)
        assert worker.snapshot().num_running == 0
        report = answer.streams[0].tokens.report()
        assert report.num_completion_tokens == num_before < 200
        assert answer.streams[0].end is not None
        return worker.num_answers, answer.streams[0].end.reason

    assert run(tiny_llm, work) == (0, FinishReason.CANCELLED)


def test_asker_that_gives_up_while_submitting_leaves_nothing(tiny_llm: LLM) -> None:
    async def work(worker: EngineWorker) -> None:
        task = asyncio.create_task(worker.submit([make_choice(tiny_llm, max_tokens=200)]))
        await asyncio.sleep(0)  # the command is on its way
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while worker.snapshot().num_finished == 0:
            await asyncio.sleep(0.01)
        assert worker.num_answers == 0

    run(tiny_llm, work)


def test_slow_reader_gets_all_at_once_and_holds_up_nobody(tiny_llm: LLM) -> None:
    async def work(worker: EngineWorker) -> tuple[int, int]:
        slow = await worker.submit([make_choice(tiny_llm, max_tokens=40)])
        await collect(await worker.submit([make_choice(tiny_llm, max_tokens=40)]))
        await slow.ended()
        waiting = len(slow.streams[0]._ready)
        slow.arrived.set()
        (chunks,) = (await slow.next_arrival()).chunks
        return waiting, len(chunks)

    assert run(tiny_llm, work) == (40, 40)


class Breaking(AnswerReader):
    """A reader with a bug."""

    def read(self, emitted: Emitted, ending: FinishReason | None = None) -> Chunk:
        """Break."""
        raise KeyError("a bug")


def test_fault_of_one_request_leaves_the_others_alone(tiny_llm: LLM) -> None:
    async def work(worker: EngineWorker) -> str:
        good = make_choice(tiny_llm)
        broken = ChoiceRequest(good.request, Breaking(tiny_llm.tokenizer, continues_text=True))
        failing, fine = await worker.submit([broken]), await worker.submit([good])
        with pytest.raises(EngineError, match="KeyError"):
            await collect(failing)
        return text_of((await collect(fine))[0])

    expected = tiny_llm.generate(PROMPT, max_tokens=20, ignore_eos=True, temperature=0.8, seed=5)
    assert run(tiny_llm, work) == expected.text


def test_broken_step_fails_its_requests_and_the_worker_goes_on(
    tiny_llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, is_broken = Engine.step, threading.Event()

    def broken_step(engine: Engine) -> None:
        if is_broken.is_set():
            raise RuntimeError("a step that nobody foresaw")
        step(engine)

    monkeypatch.setattr(Engine, "step", broken_step)

    async def work(worker: EngineWorker) -> int:
        is_broken.set()
        answer = await worker.submit([make_choice(tiny_llm)])
        with pytest.raises(EngineError, match="RuntimeError") as caught:
            await collect(answer)
        assert isinstance(caught.value.__cause__, RuntimeError)
        is_broken.clear()
        (chunks,) = await collect(await worker.submit([make_choice(tiny_llm)]))
        assert worker.is_alive
        return len(chunks)

    assert run(tiny_llm, work) == 20


def test_end_of_the_thread_ends_every_answer_at_once(
    tiny_llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against clients that wait for a thread that is no more, until their time is over."""
    snapshot, is_broken = Engine.snapshot, threading.Event()

    def broken_snapshot(engine: Engine) -> EngineSnapshot:
        if is_broken.wait(0.2):
            raise RuntimeError("where no fault is expected")
        return snapshot(engine)

    async def main() -> None:
        worker = EngineWorker(Engine.for_model(tiny_llm.backbone, tiny_llm.drafter))
        worker.start()
        answer = await worker.submit([make_choice(tiny_llm, max_tokens=200)] * 2)
        monkeypatch.setattr(Engine, "snapshot", broken_snapshot)
        asking = asyncio.create_task(worker.submit([make_choice(tiny_llm)]))
        await asyncio.sleep(0)  # its command is in the queue, behind a step that will be the last
        is_broken.set()
        with pytest.raises(EngineDownError, match="RuntimeError"):
            await collect(answer)
        with pytest.raises(EngineDownError):
            await collect(await asking)
        with pytest.raises(EngineDownError, match="Restart"):
            await worker.submit([make_choice(tiny_llm)])
        await answer.ended()
        assert (worker.is_alive, worker.num_answers, await worker.drain(5)) == (False, 0, 0)

    asyncio.run(asyncio.wait_for(main(), 10))


def test_full_queue_refuses_all_choices_or_none(tiny_llm: LLM) -> None:
    async def work(worker: EngineWorker) -> None:
        first = await worker.submit([make_choice(tiny_llm, max_tokens=100)] * 2)
        with pytest.raises(BusyError) as caught:
            await worker.submit([make_choice(tiny_llm)] * 2)
        assert caught.value.retry_after_s > 0
        (chunks,) = await collect(await worker.submit([make_choice(tiny_llm)]))
        assert len(chunks) == 20, "the place of the refused pair is free again"
        first.cancel()

    run(tiny_llm, work, EngineLimits(max_running=2, max_waiting=1))


def test_impossible_request_is_refused_to_its_asker(tiny_llm: LLM) -> None:
    async def work(worker: EngineWorker) -> None:
        with pytest.raises(RequestError, match="context"):
            await worker.submit([make_choice(tiny_llm, "x" * 5000)])

    run(tiny_llm, work)


def test_drain_lets_answers_end_and_takes_no_more(tiny_llm: LLM) -> None:
    async def work(worker: EngineWorker) -> tuple[int, int]:
        answer = await worker.submit([make_choice(tiny_llm, max_tokens=60)])
        reading = asyncio.create_task(collect(answer))
        draining = asyncio.create_task(worker.drain(20))
        await asyncio.sleep(0)
        with pytest.raises(StoppingError):
            await worker.submit([make_choice(tiny_llm)])
        (chunks,) = await reading
        return len(chunks), await draining

    assert run(tiny_llm, work) == (60, 0)


def test_drain_cuts_what_takes_too_long_with_an_error(tiny_llm: LLM) -> None:
    async def work(worker: EngineWorker) -> int:
        answer = await worker.submit([make_choice(tiny_llm, max_tokens=230)])
        await answer.next_arrival()
        num_cut = await worker.drain(0)
        with pytest.raises(StoppingError):
            await collect(answer)
        assert not worker.is_alive
        return num_cut

    assert run(tiny_llm, work) == 1


def test_loop_stays_responsive_while_the_engine_computes(default_llm: LLM) -> None:
    """The kernels let go of Python: without that, every pass would stall all clients."""

    async def work(worker: EngineWorker) -> list[float]:
        choices = [make_choice(default_llm, "word " * 600 + str(i), max_tokens=8) for i in range(2)]
        answer = await worker.submit(choices)
        reading = asyncio.create_task(collect(answer))
        gaps_s = list[float]()
        while not reading.done():
            before_s = time.perf_counter()
            await asyncio.sleep(0.001)
            gaps_s.append(time.perf_counter() - before_s)
        return gaps_s

    gaps_s = run(default_llm, work)
    assert len(gaps_s) > 100
    assert sorted(gaps_s)[len(gaps_s) // 2] < 0.02
