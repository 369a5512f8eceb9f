"""Replays without a card: what is captured, what is called, and what a capture may not meet."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest

from headlong.arrays import IntArray

torch = pytest.importorskip("torch")
from headlong.ops.cuda import graph_replay  # noqa: E402  # needs torch
from headlong.ops.cuda.graph_replay import Captured, Replay  # noqa: E402


class Graph:
    """A graph of nothing."""

    def replay(self) -> None:
        """Do nothing."""

    def pool(self) -> str:
        """Return what stands for a pool."""
        return "a pool"


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's calls for captures, without a card; the end of one that failed fails, too."""

    @contextmanager
    def captured(*_: object, **__: object) -> Iterator[None]:
        try:
            yield
        except RuntimeError:
            raise RuntimeError("CUDA error: operation failed due to a previous error") from None

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", captured)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)


@pytest.mark.usefixtures("card")
def test_nothing_is_collected_in_a_capture() -> None:
    """Guards a capture in which Python destroys the graphs of an engine that has ended."""
    assert gc.isenabled()
    assert graph_replay.capture(gc.isenabled, None).result is False
    assert gc.isenabled()


@pytest.mark.usefixtures("card")
def test_a_capture_that_fails_says_why() -> None:
    def work() -> None:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="not permitted"):
        graph_replay.capture(work, None)
    assert gc.isenabled()


def replay_of(
    monkeypatch: pytest.MonkeyPatch,
    fails: Callable[[int], bool],
    pools: list[Any],
    simplify: Callable[[], bool] = lambda: False,
) -> Replay[int, Any]:
    """Return a replay of a function that doubles numbers, as on a card; some captures fail."""
    asked: list[int] = []

    def double(shape: int, numbers: Any) -> Any:
        asked.append(shape)
        return numbers * 2

    def capture(work: Callable[[], Any], pool: Any) -> Captured:
        pools.append(pool)
        if fails(asked[-1]):
            raise RuntimeError("CUDA error: operation not permitted.\nMore.")
        result = work()
        return Captured(lambda: result.copy_(work()), result, "a pool")

    def idle(shape: int) -> IntArray:
        return np.zeros(shape, np.int64)

    monkeypatch.setattr(graph_replay, "capture", capture)
    replay = Replay(double, idle, torch.device("cpu"), simplify)
    replay.captures = True
    return replay


def test_a_shape_that_cannot_be_captured_is_called_and_others_are_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pools: list[Any] = []
    replay = replay_of(monkeypatch, lambda shape: shape == 2, pools)
    for _ in range(2):
        for shape in (1, 2, 3):
            assert replay(shape, np.arange(shape)).tolist() == [2 * i for i in range(shape)]
    assert (len(replay), replay.failed, replay.captures) == (2, {2}, True)
    assert pools == [None, "a pool", None]  # torch gives out no pool whose capture has failed
    assert replay.problem == "CUDA error: operation not permitted"


def test_where_no_shape_can_be_captured_no_more_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    pools: list[Any] = []
    replay = replay_of(monkeypatch, lambda _: True, pools)
    for shape in range(1, 7):
        assert replay(shape, np.arange(shape)).tolist() == [2 * i for i in range(shape)]
    assert len(pools) == 3
    assert not replay.captures


def test_what_is_simpler_is_tried_before_giving_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As launches that do not overlap."""
    simplified: list[bool] = []

    def simplify() -> bool:
        simplified.append(not simplified)
        return simplified[-1]

    replay = replay_of(monkeypatch, lambda _: not simplified, [], simplify)
    assert replay(2, np.arange(2)).tolist() == [0, 2]
    assert (len(replay), replay.failed, simplified) == (1, set(), [True])
    assert replay.problem is not None
