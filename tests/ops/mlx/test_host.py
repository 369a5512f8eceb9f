"""The one stream of the MLX backend, used by several models at a time."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from export_parts import write_pair
from headlong.llm import LLM

mx = pytest.importorskip("mlx.core", reason="MLX is not installed: pip install 'headlong[mlx]'")


def test_models_in_several_threads_evaluate_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLX's stream is not for two evaluations at once: the process would crash, or wait for ever.

    Those that would overlap are noticed and kept apart here, so that nothing crashes.
    """
    busy, overlaps = threading.Lock(), list[str]()

    def watched(name: str) -> Callable[..., None]:
        evaluate = getattr(mx, name)

        def run(*arrays: object) -> None:
            if not busy.acquire(blocking=False):
                overlaps.append(name)
                busy.acquire()
            try:
                time.sleep(1e-3)
                evaluate(*arrays)
            finally:
                busy.release()

        return run

    for name in ("eval", "async_eval"):
        monkeypatch.setattr(mx, name, watched(name))
    pair, answers = write_pair(tmp_path), list[tuple[int, ...]]()

    def answer() -> None:
        llm = LLM.load(pair.model, head=pair.head, drafter="head", backend="mlx")
        found = llm.generate("hello", max_tokens=12, temperature=0.8, seed=3, mtp=3)
        answers.append(found.token_ids)

    threads = [threading.Thread(target=answer) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert overlaps == []
    assert len(answers) == 2
    assert answers[0] == answers[1]
