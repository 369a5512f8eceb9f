"""The MLX backend against the oracle on every architecture, and its batch invariance in bits.

On its CPU device here; `bench/apple.sh` proves the same on a Mac.
"""

import re
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from golden_models import GOLDEN
from headlong.arrays import FloatArray, IntArray
from headlong.cache.sequence_state import make_sequence_state
from headlong.errors import BackendError
from headlong.heads.head import ParallelHeads, RecursiveHead
from headlong.heads.head_files import build_head
from headlong.heads.head_weights import HeadKind
from headlong.models.registry import load_backbone
from headlong.models.transformer import Backbone
from headlong.ops import backends
from headlong.ops.backends import make_ops
from headlong.ops.blocks import GatedDeltaNet
from headlong.ops.numpy.ops import NumpyOps
from headlong.ops.op_set import Array, Ops, Rows, Span
from headlong.weights.checkpoint import open_checkpoint
from mlx_files import write_mlx_folder
from model_files import (
    ARCHITECTURES,
    BOTH_FORMATS,
    FROM_GOLDEN,
    GEMMA4,
    HYBRID,
    LATENT,
    MIXTURE,
    write_hf_folder,
)
from random_heads import HEAD_KINDS, random_head

mx = pytest.importorskip("mlx.core", reason="MLX is not installed: pip install 'headlong[mlx]'")
from headlong.ops.mlx import host as mlx_host  # noqa: E402  # all need MLX
from headlong.ops.mlx import ops as mlx_ops  # noqa: E402
from headlong.ops.mlx.ops import MlxOps  # noqa: E402

Maker = Callable[[str, Ops], Backbone]

RELATIVE, ABSOLUTE = 1e-3, 1e-4
"""How far logits may be from the oracle's; both compute in float32, in another order."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    """Builds a tiny random model of one architecture on one backend."""
    folders: dict[str, Path] = {}

    def make(architecture: str, ops: Ops) -> Backbone:
        if (GOLDEN / architecture).exists():
            folders[architecture] = GOLDEN / architecture
        elif architecture not in folders:
            folder = tmp_path_factory.mktemp(architecture)
            folders[architecture] = write_hf_folder(folder, architecture)
        return load_backbone(open_checkpoint(folders[architecture]), ops).backbone

    return make


def random_rows(seed: int, *shape: int) -> FloatArray:
    """Return reproducible normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def token_ids(seed: int, length: int) -> IntArray:
    """Return reproducible token ids."""
    return np.random.default_rng(seed).integers(3, 60, length)


def assert_close(found: Array, expected: FloatArray, atol: float = 5e-5) -> None:
    """Compare with the oracle up to rounding."""
    np.testing.assert_allclose(np.array(found), expected, rtol=2e-4, atol=atol)


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, HYBRID, LATENT, MIXTURE])
def test_each_block_equals_the_oracle(tiny: Maker, architecture: str) -> None:
    ops, oracle = MlxOps(), NumpyOps()
    ours, theirs = tiny(architecture, ops), tiny(architecture, oracle)
    x = random_rows(1, 13, ours.config.hidden_size)
    rows = Rows(np.zeros(13, dtype=np.int64), (Span(0, 9, 0), Span(9, 4, 0)))
    for layer, expected in zip(ours.layers, theirs.layers, strict=True):
        states = [make_sequence_state(ops, [layer]) for _ in rows.spans]
        known = [make_sequence_state(oracle, [expected]) for _ in rows.spans]
        for span, *both in zip(rows.spans, states, known, strict=True):
            for state in both:
                state.append(span.num_rows)
        found, _ = ops.run_layers(mx.array(x), [layer], [one.layers for one in states], rows)
        wanted, _ = oracle.run_layers(x, [expected], [one.layers for one in known], rows)
        # What a delta net reads may be tiny before its norm makes it, and its rounding, large.
        assert_close(found, wanted, 5e-4 if isinstance(layer.mixer, GatedDeltaNet) else 5e-5)
    assert_close(ours.embed(token_ids(2, 5)), theirs.embed(token_ids(2, 5)))


@pytest.mark.parametrize(
    ("kind", "switches"),
    [*((kind, {}) for kind in HEAD_KINDS), ("eagle3", {"norm_before_residual": True})],
)
def test_heads_equal_the_oracle(tiny: Maker, kind: HeadKind, switches: dict[str, bool]) -> None:
    ours, theirs = tiny("llama", MlxOps()), tiny("llama", NumpyOps())
    ids = token_ids(3, 12)

    def logits(backbone: Backbone) -> FloatArray:
        weights = random_head(kind, backbone.config, 1)
        weights = replace(weights, config={**weights.config, **switches})
        head = build_head(weights, backbone)
        hidden = backbone.forward([ids[:-1]], [backbone.make_cache()], head.tap_layers)
        features = head.features(hidden)
        if isinstance(head, RecursiveHead):
            return head.logits(head.step(head.enter(features), [ids[1:]], [head.make_cache()]))
        assert isinstance(head, ParallelHeads)
        states = head.states(features, [head.make_cache()], [len(ids) - 1])
        return head.logits(states[head.num_depths - 1], head.num_depths)

    np.testing.assert_allclose(logits(ours), logits(theirs), rtol=RELATIVE, atol=ABSOLUTE)


def run(backbone: Backbone, ids: IntArray, cuts: list[int]) -> FloatArray:
    """Run one sequence in passes of the given sizes; return all logits."""
    cache = backbone.make_cache()
    parts = []
    for part in np.split(ids, np.cumsum(cuts)[:-1]):
        parts.append(backbone.logits(backbone.forward([part], [cache]).normed))
        cache.commit(len(part))
    return np.concatenate(parts)


GOLDEN_MODELS = sorted(
    folder.name for folder in GOLDEN.glob("tiny-*") if not folder.name.endswith("-assistant")
)


@pytest.mark.parametrize("architecture", [GEMMA4, *GOLDEN_MODELS])
def test_whole_models_equal_the_oracle(tiny: Maker, architecture: str) -> None:
    """Every family of the registry."""
    ids = token_ids(3, 30)
    found, expected = (run(tiny(architecture, ops), ids, [30]) for ops in (MlxOps(), NumpyOps()))
    np.testing.assert_allclose(found, expected, rtol=RELATIVE, atol=ABSOLUTE)


@pytest.mark.parametrize("architecture", [*BOTH_FORMATS, HYBRID, *FROM_GOLDEN])
def test_chunks_and_batch_mates_change_no_bit(tiny: Maker, architecture: str) -> None:
    """Over a step of the cache's entries as well, where rows of a pass read different stretches."""
    backbone = tiny(architecture, MlxOps())
    ids = token_ids(4, 75)
    whole = run(backbone, ids, [75])
    for cuts in ([1] * 75, [60, 3, 5, 1, 6], [7, 57, 11]):
        assert run(backbone, ids, cuts).tobytes() == whole.tobytes(), cuts
    others = [token_ids(5, 5), ids, token_ids(6, 1)]
    caches = [backbone.make_cache() for _ in others]
    together = backbone.logits(backbone.forward(others, caches).normed)
    assert together[5:80].tobytes() == whole.tobytes()


def test_weights_are_wired_up_to_what_metal_recommends(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[int] = []
    monkeypatch.setattr(mlx_ops, "is_on_metal", lambda: True)
    monkeypatch.setattr(mx, "device_info", lambda: {"max_recommended_working_set_size": 7 << 30})
    monkeypatch.setattr(mx, "set_wired_limit", limits.append)
    ops = MlxOps()
    assert limits == [7 << 30]
    assert (ops.dtype, ops.graphs.is_on) == (mx.bfloat16, True)
    assert "Apple's GPU, bf16" in ops.note


def test_a_growing_context_leaves_no_memory_behind(tiny: Maker) -> None:
    """MLX keeps what shorter passes used for later ones of their size; on a Mac that is wired."""
    backbone = tiny("llama", MlxOps())
    cache = backbone.make_cache()
    mx.clear_cache()
    for _ in range(20):
        backbone.logits(backbone.forward([token_ids(9, 64)], [cache]).normed[-1:])
        cache.commit(64)
    after_prompt = mx.get_cache_memory()
    for _ in range(50):
        backbone.logits(backbone.forward([token_ids(9, 2)], [cache]).normed)
        cache.commit(1)
    assert max(after_prompt, mx.get_cache_memory()) < 8 * 2**20  # 22 MiB if all is kept


@pytest.mark.parametrize("architecture", ["llama", GEMMA4, HYBRID])
def test_a_pass_in_bfloat16_stays_so_and_keeps_its_bits(tiny: Maker, architecture: str) -> None:
    """What a GPU computes in; a number in float32 on the way would widen all behind it."""
    ops = MlxOps()
    ops.dtype = mx.bfloat16
    backbone, ids = tiny(architecture, ops), token_ids(4, 70)
    raw, normed, taps = backbone.forward([ids], [backbone.make_cache()], (1,))
    assert taps is not None
    assert {raw.dtype, normed.dtype, taps.dtype} == {mx.bfloat16}
    whole = run(backbone, ids, [70])
    assert run(backbone, ids, [58, 5, 1, 6]).tobytes() == whole.tobytes()
    expected = run(tiny(architecture, NumpyOps()), ids, [70])
    assert np.linalg.norm(whole - expected) < 0.2 * np.linalg.norm(expected)


@pytest.mark.parametrize("architecture", ["llama", MIXTURE, LATENT, HYBRID])
def test_folders_of_mlx_lm_equal_the_oracle(architecture: str, tmp_path: Path) -> None:
    write_mlx_folder(tmp_path, architecture, bits=4, group_size=32)
    found, expected = (
        run(load_backbone(open_checkpoint(tmp_path), ops).backbone, token_ids(8, 20), [20])
        for ops in (MlxOps(), NumpyOps())
    )
    np.testing.assert_allclose(found, expected, rtol=RELATIVE, atol=ABSOLUTE)


def test_another_thread_takes_over(tiny: Maker) -> None:
    """A server loads a model in one thread and runs it in another; MLX keeps threads apart."""
    backbone = tiny("llama", MlxOps())
    cache = backbone.make_cache()
    ids = token_ids(7, 12)
    hidden = backbone.forward([ids[:8]], [cache])  # nothing of it is computed yet
    found: list[FloatArray] = []

    def go_on() -> None:
        cache.commit(8)
        found.append(backbone.logits(hidden.normed))
        found.append(backbone.logits(backbone.forward([ids[8:]], [cache]).normed))

    thread = threading.Thread(target=go_on)
    thread.start()
    thread.join()
    assert np.concatenate(found).tobytes() == run(backbone, ids, [12]).tobytes()


def test_without_mlx_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "backend_problem", lambda name: "No module named 'mlx'.")
    with pytest.raises(BackendError, match=r"headlong\[mlx\]"):
        make_ops("mlx")


def test_the_oldest_mlx_is_the_one_that_is_installed_at_least() -> None:
    project = (GOLDEN.parents[1] / "pyproject.toml").read_text()
    named = re.findall(r'"mlx(?:\[cpu\])?>=([\d.]+);', project)
    assert len(named) == 4
    assert set(named) == {mlx_host.MIN_VERSION}


def test_an_older_mlx_is_refused_with_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mx, "new_thread_unsafe_stream")
    for name in ("host", "ops"):
        monkeypatch.delitem(sys.modules, f"headlong.ops.mlx.{name}", raising=False)
    with pytest.raises(BackendError, match=f"{mlx_host.MIN_VERSION} or later") as caught:
        make_ops("mlx")
    assert mx.__version__ in str(caught.value)
    assert "--upgrade" in str(caught.value)


def test_a_device_that_cannot_be_reached_is_no_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """So "auto" takes another one; MLX says it in an error of its own."""

    def unreachable(device: object) -> None:
        raise RuntimeError("[metal::load_device] No Metal device available.")

    monkeypatch.setattr(mx, "new_thread_unsafe_stream", unreachable)
    for name in ("host", "ops"):
        monkeypatch.delitem(sys.modules, f"headlong.ops.mlx.{name}", raising=False)
    problem = backends.backend_problem("mlx")
    assert problem is not None
    assert "no device here: [metal::load_device] No Metal device available" in problem
