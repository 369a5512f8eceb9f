"""Compiled passes on MLX: the bits of the blocks, one graph a shape, none where bits differ."""

import gc
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from golden_models import GOLDEN
from headlong.config import SamplingParams, StopParams
from headlong.decode.autoregressive import generate_plain
from headlong.decode.request import Request
from headlong.decode.sampling import Sampler
from headlong.engine.engine import Engine
from headlong.engine.limits import EngineLimits
from headlong.models.registry import load_backbone
from headlong.models.transformer import Backbone
from headlong.weights.checkpoint import open_checkpoint
from model_files import BOTH_FORMATS, FROM_GOLDEN, HYBRID, SINKS, write_hf_folder
from random_drafters import drafter_named

mx = pytest.importorskip("mlx.core", reason="MLX is not installed: pip install 'headlong[mlx]'")
from headlong.ops.mlx import graphs as mlx_graphs  # noqa: E402  # all need MLX
from headlong.ops.mlx.host import is_on_metal  # noqa: E402
from headlong.ops.mlx.ops import MlxOps  # noqa: E402
from headlong.ops.mlx.state import MlxKVLayer  # noqa: E402


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Callable[..., Any]]:
    """Every function that MLX is asked to compile."""
    found: list[Callable[..., Any]] = []
    compile_ = mx.compile

    def compile_and_tell(function: Callable[..., Any]) -> Callable[..., Any]:
        found.append(function)
        graph: Callable[..., Any] = compile_(function)
        return graph

    monkeypatch.setattr(mx, "compile", compile_and_tell)
    monkeypatch.setattr(mlx_graphs, "COMPILE_AFTER", 2)
    return found


def load(architecture: str, folder: Path, *, is_on: bool) -> Backbone:
    """Load a tiny model whose passes are compiled or not."""
    path = GOLDEN / architecture if architecture in FROM_GOLDEN else folder
    if path is folder and not folder.exists():
        write_hf_folder(folder, architecture)
    ops = MlxOps()
    ops.graphs.is_on = is_on
    return load_backbone(open_checkpoint(path), ops).backbone


def passes(backbone: Backbone) -> list[bytes]:
    """Run passes of two sequences over a step of their caches, drafts of three rows refused."""
    rng = np.random.default_rng(1)
    caches = [backbone.make_cache() for _ in range(2)]
    found = []
    for num_rows in [40, *[3] * 30]:
        ids = [rng.integers(3, 60, num_rows) for _ in caches]
        found.append(backbone.logits(backbone.forward(ids, caches).normed).tobytes())
        for cache in caches:
            cache.commit(num_rows if num_rows > 3 else 1)
    return found


@pytest.mark.parametrize("architecture", [*BOTH_FORMATS, SINKS])
def test_graphs_give_the_bits_of_blocks(
    architecture: str, tmp_path: Path, compiled: list[Callable[..., Any]]
) -> None:
    """What is put into a graph and taken out of it; nothing is fused here."""
    mx.disable_compile()
    try:
        ours = load(architecture, tmp_path / "model", is_on=True)
        plain = load(architecture, tmp_path / "model", is_on=False)
        assert passes(ours) == passes(plain)
    finally:
        mx.enable_compile()
    assert len(compiled) > 0


def test_recurrent_layers_are_not_compiled(
    tmp_path: Path, compiled: list[Callable[..., Any]]
) -> None:
    assert passes(load(HYBRID, tmp_path / "model", is_on=True))
    assert compiled == []


@pytest.mark.skipif(shutil.which("g++") is None, reason="MLX's CPU device calls g++")
def test_a_shape_is_compiled_once_and_changes_no_token(
    tmp_path: Path, compiled: list[Callable[..., Any]]
) -> None:
    """Truly compiled, with drafts on the device, greedy and sampled, alone and together."""
    backbone = load("llama", tmp_path / "model", is_on=True)
    graphs = backbone.ops.graphs  # type: ignore[attr-defined]
    plain = load("llama", tmp_path / "model", is_on=False)
    drafter = drafter_named("eagle3", backbone)
    engine = Engine.for_model(backbone, drafter, EngineLimits(honour_k=True))
    rng = random.Random(3)
    for together in (1, 1, 2):
        requests = [
            Request(
                tuple(rng.randrange(3, 60) for _ in range(5)),
                SamplingParams(temperature=0.9 * number, seed=number),
                StopParams(max_tokens=40, ignore_eos=True),
                mtp=3,
            )
            for number in range(together)
        ]
        running = [engine.submit(request) for request in requests]
        while any(one.finish_reason is None for one in running):
            engine.step()
        for request, one in zip(requests, running, strict=True):
            sampler = Sampler(request.sampling, request.prompt_ids, plain.config.vocab_size)
            expected = generate_plain(plain, request.prompt_ids, sampler)
            assert [e.pick for e in one.outbox] == [next(expected) for _ in one.outbox]
    if is_on_metal() and not graphs.is_on:
        pytest.skip(f"exact, but not compiled: {backbone.ops.note}")
    assert graphs.is_on
    assert 0 < len(graphs) == len(compiled)
    num_compiled = len(compiled)
    again = engine.submit(requests[0])
    while again.finish_reason is None:
        engine.step()
    assert len(compiled) - num_compiled <= 1


def _rounded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile into something that rounds otherwise, as a GPU's compiler may; in bfloat16 too."""

    def run(*arrays: Any) -> Any:
        x, *others = function(*arrays)
        return (x * (1 + 2**-7), *others)

    return run


def _refused(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile nothing."""

    def run(*arrays: Any) -> Any:
        raise ValueError("no compiler")

    return run


@pytest.mark.parametrize(
    ("compile_", "reason"), [(_rounded, "other bits"), (_refused, "no compiler")]
)
def test_a_compiler_that_changes_bits_is_not_used_and_the_note_says_why(
    compile_: Callable[..., Any], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mx, "compile", compile_)
    monkeypatch.setattr(mlx_graphs, "COMPILE_AFTER", 2)
    ours = load("llama", tmp_path / "model", is_on=True)
    assert passes(ours) == passes(load("llama", tmp_path / "model", is_on=False))
    assert not ours.ops.graphs.is_on  # type: ignore[attr-defined]
    assert reason in ours.ops.note


def test_a_graph_keeps_no_cache_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the sequence with which it was compiled ends with the sequence."""
    monkeypatch.setattr(mlx_graphs, "COMPILE_AFTER", 1)

    def num_caches() -> int:
        gc.collect()
        # Not isinstance: it asks every object for its class, and some of torch's warn then.
        return sum(type(one) is MlxKVLayer for one in gc.get_objects())

    mx.disable_compile()
    try:
        ours = load("llama", tmp_path / "model", is_on=True)
        before = num_caches()
        cache = ours.make_cache()
        for _ in range(3):
            ours.logits(ours.forward([np.arange(3, 6)], [cache]).normed)
            cache.commit(0)
        assert len(ours.ops.graphs) == 1  # type: ignore[attr-defined]
        del cache
        assert num_caches() == before
    finally:
        mx.enable_compile()


def test_old_graphs_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlx_graphs, "COMPILE_AFTER", 1)
    monkeypatch.setattr(mlx_graphs, "MAX_GRAPHS", 2)
    mx.disable_compile()
    try:
        ours = load("llama", tmp_path / "model", is_on=True)
        cache = ours.make_cache()
        for num_rows in (2, 3, 4, 5):
            for _ in range(2):
                ours.logits(ours.forward([np.arange(3, 3 + num_rows)], [cache]).normed)
                cache.commit(0)
        assert len(ours.ops.graphs) == 2  # type: ignore[attr-defined]
    finally:
        mx.enable_compile()
