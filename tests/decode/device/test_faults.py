"""What goes wrong with a device: memory that runs out, a device that is lost, kernels that fail.

The errors are those that torch raises; where they come from is simulated.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headlong.config import SamplingParams, StopParams
from headlong.decode.choose_runner import choose_runner
from headlong.decode.device.runner import DeviceRunner
from headlong.decode.request import Request
from headlong.decode.runner import RunnerBounds
from headlong.decode.step_runner import StepRunner
from headlong.engine.engine import Engine
from headlong.engine.request import FinishReason
from headlong.errors import BackendError, EngineDownError, EngineError
from headlong.generation import AnswerReader
from headlong.models.transformer import Backbone
from headlong.server.answer_stream import ChoiceRequest
from headlong.server.worker import EngineWorker
from tiny_text import byte_level_tokenizer

torch = pytest.importorskip("torch")
from device_engines import (  # noqa: E402  # needs torch
    device_drafters,
    device_engine,
    run_all,
    tiny_on_device,
    token_ids,
)
from headlong.decode.device import memory as device_memory  # noqa: E402
from headlong.decode.device.faults import DeviceFaults, DeviceMemoryError  # noqa: E402
from headlong.ops.cuda import graph_replay, paged_check  # noqa: E402
from headlong.ops.cuda.ops import CudaOps  # noqa: E402
from headlong.ops.cuda.plain_paged_blocks import PlainPagedBlocks  # noqa: E402
from headlong.ops.torch.ops import TorchOps  # noqa: E402
from recorded_graphs import RecordedBlocks  # noqa: E402

torch.set_num_threads(1)
LOST = torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nMore.")
FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore.")
REQUESTS = [
    Request(tuple(range(start, start + 9)), SamplingParams(), StopParams(20, ignore_eos=True), 3)
    for start in (5, 20, 35)
]


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    """A tiny random model whose blocks are those of a GPU."""
    return tiny_on_device(tmp_path_factory.mktemp("model"), "llama")


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let passes fail: behind so many layers, so many times, on the device or step by step."""

    def begin(error: Exception, after: int, times: int, *, by_steps: bool = False) -> None:
        owner, name = (TorchOps, "mix") if by_steps else (PlainPagedBlocks, "run_layer")
        run, seen = getattr(owner, name), [0]

        def run_or_fail(*arguments: Any, **named: Any) -> Any:
            seen[0] += 1
            if after < seen[0] <= after + times:
                raise error
            return run(*arguments, **named)

        monkeypatch.setattr(owner, name, run_or_fail)

    return begin


def engine_of(backbone: Backbone) -> Engine:
    return device_engine(backbone, device_drafters("nextn", backbone))


def answers(backbone: Backbone) -> list[list[int]]:
    """Return what the requests are answered where nothing goes wrong."""
    return [token_ids(one) for one in run_all(Engine(StepRunner(backbone)), REQUESTS)]


@pytest.mark.parametrize("after", [1, 30])
def test_a_pass_that_finds_no_memory_is_made_again(
    backbone: Backbone, fail: Callable[..., None], after: int
) -> None:
    """Once in the prompts, once in rounds: some run again alone, and none is answered otherwise."""
    wanted = answers(backbone)
    fail(FULL, after, 1)
    assert [token_ids(one) for one in run_all(engine_of(backbone), REQUESTS)] == wanted


def test_where_memory_stays_short_requests_are_told_and_later_ones_answered(
    backbone: Backbone, fail: Callable[..., None]
) -> None:
    wanted = answers(backbone)
    engine = engine_of(backbone)
    fail(FULL, 30, 60)
    failed = [one.error for one in run_all(engine, REQUESTS) if one.error is not None]
    assert failed
    assert all(isinstance(error, DeviceMemoryError) for error in failed)
    assert "too little free memory: CUDA out of memory. Tried to allocate 2.00 GiB." in str(
        failed[0]
    )
    for _ in range(60):  # until the failures are spent
        run_all(engine, REQUESTS[:1])
    assert [token_ids(one) for one in run_all(engine, REQUESTS)] == wanted
    assert engine.snapshot().problem is None


@pytest.mark.parametrize("after", [1, 30])
@pytest.mark.parametrize("by_steps", [False, True])
def test_a_lost_device_ends_all_requests_and_refuses_others(
    backbone: Backbone, fail: Callable[..., None], after: int, by_steps: bool
) -> None:
    """Also under models that have no kernels."""
    engine = engine_of(backbone)
    if by_steps:
        engine = Engine(StepRunner(backbone, faults=DeviceFaults()))
    fail(LOST, after, 10**9, by_steps=by_steps)
    for one in run_all(engine, REQUESTS):
        assert one.finish_reason is FinishReason.ERROR
        assert "The GPU failed: CUDA error: an illegal memory access" in str(one.error)
    (later,) = run_all(engine, REQUESTS[:1])
    assert "The GPU failed" in str(later.error)
    assert engine.num_running == engine.num_waiting == 0
    assert "The GPU failed" in str(engine.snapshot().problem)


def test_a_server_whose_device_is_lost_says_so(
    backbone: Backbone, fail: Callable[..., None]
) -> None:
    """Its thread goes on, so that whoever asks is answered, and health is down."""

    async def work() -> None:
        worker = EngineWorker(engine_of(backbone))
        worker.start()
        reader = AnswerReader(byte_level_tokenizer(), (), continues_text=True)
        answer = await worker.submit([ChoiceRequest(one, reader) for one in REQUESTS])
        async with asyncio.timeout(30):
            with pytest.raises(EngineError, match="The GPU failed"):  # noqa: PT012  # in which one
                while not (await answer.next_arrival()).is_last:
                    pass
            assert isinstance(worker.refusal, EngineDownError)
            assert "The GPU failed" in str(worker.refusal)
            assert worker.is_alive
            with pytest.raises(EngineDownError):
                await worker.submit([ChoiceRequest(REQUESTS[0], reader)])
            await worker.drain(0)

    fail(LOST, 30, 10**9)
    asyncio.run(work())


def test_a_sequence_that_cannot_begin_gives_its_pages_back(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its prompt begins like another one, whose last page cannot be copied."""
    engine = engine_of(backbone)
    run_all(engine, REQUESTS)
    assert isinstance(engine.runner, DeviceRunner)
    with monkeypatch.context() as patch:

        def full(*_: object) -> None:
            raise FULL

        patch.setattr(engine.runner.memory.pool, "copy", full)
        (found,) = run_all(engine, REQUESTS[:1])
    assert isinstance(found.error, DeviceMemoryError)
    engine.clear_prefixes()
    assert engine.snapshot().kv_bytes == 0
    assert not engine.runner._slots
    assert [token_ids(one) for one in run_all(engine, REQUESTS)] == answers(backbone)


def test_where_caches_find_no_memory_loading_says_so(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise FULL

    monkeypatch.setattr(PlainPagedBlocks, "make_pages", full)
    with pytest.raises(DeviceMemoryError, match="too little free memory"):
        choose_runner(backbone, None, RunnerBounds())


def test_a_matrix_that_finds_no_memory_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise FULL

    monkeypatch.setattr(TorchOps, "matrix", full)
    with pytest.raises(BackendError, match=r"GPU's memory is full at token_embd\.weight"):
        tiny_on_device(tmp_path, "llama")


def test_kernels_that_do_not_start_leave_a_slower_runner(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where Triton finds no C compiler; but a lost device is no reason for another runner."""

    def fails(error: Exception) -> Callable[..., str]:
        def check(*_: object) -> str:
            raise error

        return check

    no_compiler = RuntimeError("Failed to find C compiler. Please specify via CC.\nMore.")
    monkeypatch.setattr(paged_check, "why_not_trusted", fails(no_compiler))
    runner = choose_runner(backbone, None, RunnerBounds())
    assert isinstance(runner, StepRunner)
    assert "as its kernels do not start (RuntimeError: Failed to find C compiler" in runner.backend
    for error in (LOST, FULL):
        monkeypatch.setattr(paged_check, "why_not_trusted", fails(error))
        with pytest.raises(EngineError, match="GPU"):
            choose_runner(backbone, None, RunnerBounds())


@pytest.mark.parametrize("num_good", [0, 1])
def test_rounds_that_cannot_be_captured_run_without_graphs_and_say_so(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch, num_good: int
) -> None:
    """All of them, or those of some shapes."""
    ops = backbone.ops
    assert isinstance(ops, CudaOps)
    blocks, captured = RecordedBlocks(ops), list[Any]()

    def capture(work: Callable[[], object], pool: Any) -> graph_replay.Captured:
        captured.append(pool)
        if len(captured) > num_good:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing.\nX")
        return blocks.capture(work, pool)

    monkeypatch.setattr(ops, "paged", blocks)
    monkeypatch.setattr(graph_replay, "capture", capture)
    monkeypatch.setattr(graph_replay, "_MOST_FAILED", 1)
    engine = engine_of(backbone)
    assert isinstance(engine.runner, DeviceRunner)
    replay = engine.runner.rounds.replay
    replay.captures = True
    assert "replayed as graphs" in engine.backend
    for _ in range(2):
        assert [token_ids(one) for one in run_all(engine, REQUESTS)] == answers(backbone)
    assert "many times slower, as they cannot be captured (CUDA" in engine.backend
    assert ("kinds of them" in engine.backend) is replay.captures is bool(num_good)
    assert engine.snapshot().problem is None


def test_memory_runs_out_in_a_capture_and_the_round_is_made_again(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Graphs and kept prefixes make room for it."""
    ops = backbone.ops
    assert isinstance(ops, CudaOps)
    blocks = RecordedBlocks(ops)
    captured = []

    def capture(work: Callable[[], object], pool: Any) -> graph_replay.Captured:
        captured.append(pool)
        if len(captured) == 2:
            raise FULL
        return blocks.capture(work, pool)

    monkeypatch.setattr(ops, "paged", blocks)
    monkeypatch.setattr(graph_replay, "capture", capture)
    engine = engine_of(backbone)
    assert isinstance(engine.runner, DeviceRunner)
    engine.runner.rounds.replay.captures = True
    assert [token_ids(one) for one in run_all(engine, REQUESTS)] == answers(backbone)
    assert captured[:3] == [None, "a pool", None]


def test_memory_that_torch_holds_in_reserve_counts_as_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards a second engine beside the leavings of the first."""
    free = [1_000]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free[0], 10_000))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: free.append(free.pop() + 7_000))
    assert device_memory._free_bytes(torch.device("cuda")) == int(0.85 * 8_000)


@pytest.mark.parametrize("answers", [True, False])
def test_a_launch_that_fails_is_asked_after(
    monkeypatch: pytest.MonkeyPatch, *, answers: bool
) -> None:
    """Triton says in its own words what a kernel before did."""

    def synchronize() -> None:
        if not answers:
            raise LOST

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    faults = DeviceFaults()
    with pytest.raises(RuntimeError if answers else EngineError), faults.guard():
        raise RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")
    assert (faults.lost is None) is answers


def test_memory_short_in_the_drivers_words_loses_nothing() -> None:
    faults = DeviceFaults()
    with pytest.raises(DeviceMemoryError), faults.guard():
        raise torch.AcceleratorError("CUDA error: out of memory\nMore.")
    assert faults.lost is None
