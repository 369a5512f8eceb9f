"""The torch backend against the oracle on every architecture, and its batch invariance in bits."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from assistant_files import assistant_maker
from golden_models import GOLDEN
from headlong.arrays import FloatArray, IntArray
from headlong.cache.sequence_state import make_sequence_state
from headlong.config import SamplingParams, StopParams
from headlong.decode.autoregressive import generate_plain
from headlong.decode.request import Request
from headlong.decode.sampling import Sampler
from headlong.engine.engine import Engine
from headlong.errors import BackendError
from headlong.heads.head import ParallelHeads, RecursiveHead
from headlong.heads.head_files import build_head
from headlong.heads.head_weights import HeadKind
from headlong.llm import LLM
from headlong.models.registry import load_backbone
from headlong.models.transformer import Backbone
from headlong.ops import backends
from headlong.ops.backends import make_ops
from headlong.ops.blocks import GatedDeltaNet, Linear, Norm
from headlong.ops.numpy.ops import NumpyOps
from headlong.ops.op_set import Array, Ops, Rows, Span
from headlong.weights.checkpoint import open_checkpoint
from model_files import (
    ARCHITECTURES,
    BOTH_FORMATS,
    FROM_GOLDEN,
    GEMMA4,
    HYBRID,
    LATENT,
    MIXTURE,
    write_gguf,
    write_hf_folder,
)
from native_parts import stored
from random_drafters import drafter_named
from random_heads import HEAD_KINDS, random_head
from tiny_text import byte_level_metadata

torch = pytest.importorskip("torch")
from headlong.ops.torch import weights as torch_weights  # noqa: E402  # both need torch
from headlong.ops.torch.ops import TorchOps  # noqa: E402

# Threads that spin for each other collapse when a shared machine takes a core away.
torch.set_num_threads(1)

CPU = torch.device("cpu")

Maker = Callable[[str, Ops], Backbone]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    """Builds a tiny random model of one architecture on one backend."""
    folders: dict[str, Path] = {}

    def make(architecture: str, ops: Ops) -> Backbone:
        if architecture in FROM_GOLDEN:
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
    return np.random.default_rng(seed).integers(3, 90, length)


def assert_close(found: Array, expected: FloatArray, atol: float = 5e-5) -> None:
    """Compare with the oracle up to rounding."""
    np.testing.assert_allclose(found.numpy(), expected, rtol=2e-4, atol=atol)


@pytest.mark.parametrize("is_exact", [True, False])
@pytest.mark.parametrize("architecture", [*ARCHITECTURES, HYBRID, LATENT, MIXTURE])
def test_each_block_equals_the_oracle(tiny: Maker, architecture: str, is_exact: bool) -> None:
    ops, oracle = TorchOps(CPU, is_exact=is_exact), NumpyOps()
    ours, theirs = tiny(architecture, ops), tiny(architecture, oracle)
    x = random_rows(1, 13, ours.config.hidden_size)
    rows = Rows(np.zeros(13, dtype=np.int64), (Span(0, 9, 0), Span(9, 4, 0)))
    for layer, expected in zip(ours.layers, theirs.layers, strict=True):
        states = [make_sequence_state(ops, [layer]) for _ in rows.spans]
        known = [make_sequence_state(oracle, [expected]) for _ in rows.spans]
        for span, *both in zip(rows.spans, states, known, strict=True):
            for state in both:
                state.append(span.num_rows)
        given = torch.tensor(x)
        found, _ = ops.run_layers(given, [layer], [one.layers for one in states], rows)
        wanted, _ = oracle.run_layers(x, [expected], [one.layers for one in known], rows)
        # What a delta net reads may be tiny before its norm makes it, and its rounding, large.
        assert_close(found, wanted, 5e-4 if isinstance(layer.mixer, GatedDeltaNet) else 5e-5)
        assert layer.channel is not None
        assert expected.channel is not None
        channel = oracle.transform(x, expected.channel)
        assert_close(ops.transform(given, layer.channel), channel)
        if not isinstance(layer.mixer, GatedDeltaNet):
            last = ops.run_last(given, layer, [one.layers[0] for one in states], rows)
            expected_last = [one.layers[0] for one in known]
            assert_close(last, oracle.run_last(x, expected, expected_last, rows))
    assert_close(ops.norm(given, ours.final_norm), oracle.norm(x, theirs.final_norm))
    assert_close(ops.project(given, ours.lm_head), oracle.project(x, theirs.lm_head))
    assert_close(ours.embed(token_ids(2, 5)), theirs.embed(token_ids(2, 5)))


@pytest.mark.parametrize("is_exact", [True, False])
def test_layers_that_share_keys_equal_the_oracle(tiny: Maker, is_exact: bool) -> None:
    ids = token_ids(3, 30)
    ours = tiny(GEMMA4, TorchOps(CPU, is_exact=is_exact))
    np.testing.assert_allclose(
        run(ours, ids, [30]), run(tiny(GEMMA4, NumpyOps()), ids, [30]), rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize(
    ("kind", "switches"),
    [*((kind, {}) for kind in HEAD_KINDS), ("eagle3", {"norm_before_residual": True})],
)
def test_heads_equal_the_oracle(tiny: Maker, kind: HeadKind, switches: dict[str, bool]) -> None:
    ours, theirs = tiny("llama", TorchOps(CPU)), tiny("llama", NumpyOps())
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

    np.testing.assert_allclose(logits(ours), logits(theirs), rtol=1e-3, atol=1e-4)


def run(backbone: Backbone, ids: IntArray, cuts: list[int]) -> FloatArray:
    """Run one sequence in passes of the given sizes; return all logits."""
    cache = backbone.make_cache()
    parts = []
    for part in np.split(ids, np.cumsum(cuts)[:-1]):
        parts.append(backbone.logits(backbone.forward([part], [cache]).normed))
        cache.commit(len(part))
    return np.concatenate(parts)


@pytest.mark.parametrize("is_exact", [True, False])
@pytest.mark.parametrize("architecture", FROM_GOLDEN)
def test_whole_models_equal_the_oracle(tiny: Maker, architecture: str, is_exact: bool) -> None:
    ids = token_ids(3, 30)
    found = run(tiny(architecture, TorchOps(CPU, is_exact=is_exact)), ids, [30])
    expected = run(tiny(architecture, NumpyOps()), ids, [30])
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("architecture", [*BOTH_FORMATS, HYBRID, *FROM_GOLDEN])
def test_chunks_and_batch_mates_change_no_bit(tiny: Maker, architecture: str) -> None:
    backbone = tiny(architecture, TorchOps(CPU))
    ids = token_ids(4, 30)
    whole = run(backbone, ids, [30])
    for cuts in ([1] * 30, [7, 7, 7, 9], [29, 1]):
        assert run(backbone, ids, cuts).tobytes() == whole.tobytes(), cuts
    others = [token_ids(5, 5), ids, token_ids(6, 1)]
    caches = [backbone.make_cache() for _ in others]
    together = backbone.logits(backbone.forward(others, caches).normed)
    assert together[5:35].tobytes() == whole.tobytes()


DRAFTED = [("llama", name) for name in ("ngram", "chain-eagle3", "nextn", "meta", "draft-model")]
DRAFTED += [(HYBRID, name) for name in ("chain-nextn", "draft-model")]
DRAFTED += [(GEMMA4, name) for name in ("nextn", "assistant")]
DRAFTED += [(LATENT, "chain-nextn")]


@pytest.mark.parametrize(("architecture", "name"), DRAFTED)
def test_drafts_leave_the_text_alone(
    tiny: Maker, architecture: str, name: str, tmp_path: Path
) -> None:
    """Exactness on this backend: several requests at once, drafted for, against the plain loop."""
    backbone = tiny(architecture, TorchOps(CPU))
    rng = random.Random(f"{architecture} {name}")
    requests = [
        Request(
            tuple(rng.randrange(90) for _ in range(rng.randint(1, 25))),
            SamplingParams(temperature=rng.choice([0.0, 0.8]), seed=seed),
            StopParams(max_tokens=rng.randint(4, 14), ignore_eos=True),
            mtp=rng.choice([0, 3, 5, "auto"]) or "off",
        )
        for seed in range(4)
    ]
    is_assistant = name == "assistant"
    make_drafter = assistant_maker(tmp_path) if is_assistant else partial(drafter_named, name)
    engine = Engine.for_model(backbone, make_drafter(backbone))
    running = [engine.submit(request) for request in requests]
    while any(one.finish_reason is None for one in running):
        engine.step()
    for request, one in zip(requests, running, strict=True):
        sampler = Sampler(request.sampling, request.prompt_ids, backbone.config.vocab_size)
        plain = generate_plain(backbone, request.prompt_ids, sampler)
        assert [e.pick for e in one.outbox] == [next(plain) for _ in one.outbox]
        assert len(one.outbox) == request.stopping.max_tokens


def test_a_model_generates_on_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model_files.VOCAB_SIZE", 266)
    path = write_gguf(tmp_path / "tiny.gguf", "llama", extra_metadata=byte_level_metadata())
    llm = LLM.load(path, backend="torch")
    reference = LLM.load(path, backend="numpy")
    assert llm.backbone.ops.name == "torch"
    found, expected = (
        one.generate("hello", max_tokens=12, temperature=0.0, ignore_eos=True)
        for one in (llm, reference)
    )
    assert found.token_ids == expected.token_ids


def test_a_row_never_feels_its_mates() -> None:
    """Kernels compute the last numbers of an array otherwise, so 50 is no multiple of theirs."""
    ops = TorchOps(CPU)
    linear = Linear(ops.matrix(stored("F32", random_rows(14, 50, 50) / np.float32(3))))
    norm = Norm(random_rows(15, 50), 1e-5)
    x = torch.tensor(random_rows(16, 200, 50))
    whole = ops.norm(ops.residual_silu(x, linear), norm)
    for size in (1, 7, 31):
        parts = [ops.norm(ops.residual_silu(part, linear), norm) for part in x.split(size)]
        assert torch.equal(torch.cat(parts), whole)


def test_a_library_that_mixes_rows_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the silent failure where a kernel depends on the row's place in the tile."""
    matrix = TorchOps(CPU).matrix(stored("F32", random_rows(9, 32, 16)))
    x = torch.tensor(random_rows(10, 11, 16))
    monkeypatch.setattr(torch_weights, "_is_batch_invariant", lambda values: False)
    alone = torch.cat([torch.nn.functional.linear(row, matrix.values) for row in x.split(1)])
    assert torch.equal(matrix.times(x), alone)


def test_fused_matrices_lie_in_memory_once() -> None:
    ops = TorchOps(CPU)
    parts = [ops.matrix(stored("F32", random_rows(seed, 4, 8))) for seed in (11, 12)]
    before = [part.values.clone() for part in parts]
    joined = torch_weights.TorchMatrix.join(parts)
    assert torch.equal(joined.values, torch.cat(before))
    assert parts[1].values.data_ptr() == joined.values[4:].data_ptr()
    assert joined.num_bytes == 4 * 8 * 8


def test_rounding_is_that_of_the_oracle() -> None:
    tensor = stored("F32", random_rows(13, 6, 64))
    found = TorchOps(CPU).matrix(tensor, "q4").values.numpy()
    assert np.array_equal(found, NumpyOps().matrix(tensor, "q4").values)


def test_rows_that_waited_on_the_host_come_back() -> None:
    newest = torch.ones(1, 2)
    joined = TorchOps(CPU).join([np.zeros((2, 2), np.float32), newest])
    assert joined.tolist() == [[0, 0], [0, 0], [1, 1]]
    assert TorchOps(CPU).join([newest]) is newest


def test_without_torch_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        return "No module named 'torch'."

    monkeypatch.setattr(backends, "backend_problem", missing)
    with pytest.raises(BackendError, match="pip install torch"):
        make_ops("torch")
