"""Paged blocks in plain torch: the same bits as the op set over caches without pages."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headlong.cache.sequence_state import make_sequence_state
from headlong.models.registry import load_backbone
from headlong.models.transformer import Backbone
from headlong.ops.blocks import Layer
from headlong.weights.checkpoint import open_checkpoint
from model_files import ARCHITECTURES, MIXTURE, write_hf_folder

torch = pytest.importorskip("torch")
from headlong.ops.cuda.ops import CudaOps  # noqa: E402  # both need torch
from headlong.ops.cuda.paged_blocks import PAGE_SIZE, DeviceRows, why_not_fast  # noqa: E402

torch.set_num_threads(1)
CPU = torch.device("cpu")
TAPS = (0, 1)


@pytest.fixture(params=ARCHITECTURES)
def backbone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    """A tiny random model on the CUDA backend's plain blocks."""
    folder = write_hf_folder(tmp_path_factory.mktemp(request.param), request.param)
    return load_backbone(open_checkpoint(folder), CudaOps(CPU)).backbone


def device_rows(ids: np.ndarray, spans: list[tuple[int, range]], padding: int = 0) -> DeviceRows:
    """Lay out rows of some slots, whose pages lie in any order, with rows that fill up."""
    slots = [slot for slot, positions in spans for _ in positions] + [-1] * padding
    positions = [p for _, positions in spans for p in positions] + [0] * padding
    ids = np.concatenate([ids, np.zeros(padding, np.int64)])
    table = torch.tensor([[5, 2, 7], [1, 6, 3]], dtype=torch.int32)
    columns = [torch.tensor(np.asarray(one), dtype=torch.int32) for one in (ids, positions, slots)]
    return DeviceRows(columns[0], columns[1], columns[2], table)


def test_pages_change_no_bit(backbone: Backbone) -> None:
    ops = backbone.ops
    assert isinstance(ops, CudaOps)
    assert why_not_fast(backbone.layers) is None
    lengths = [PAGE_SIZE + 3, 9]
    ids = [np.random.default_rng(i).integers(3, 90, n + 2) for i, n in enumerate(lengths)]
    caches = [make_sequence_state(ops, backbone.layers) for _ in lengths]
    pages = ops.paged.make_pages(backbone.layers, 8)
    first = [(slot, range(length)) for slot, length in enumerate(lengths)]
    then = [(slot, range(length, length + 2)) for slot, length in enumerate(lengths)]
    for spans in (first, then):
        own = [ids[slot][span.start : span.stop] for slot, span in spans]
        hidden = backbone.forward(own, caches, TAPS)
        for cache, (_, span) in zip(caches, spans, strict=True):
            cache.commit(len(span))
        rows = device_rows(np.concatenate(own), spans, padding=3)
        embedded = ops.paged.embed(backbone.embedding, rows.token_ids, backbone.embedding_scale)
        x, taps = ops.paged.run_layers(embedded, backbone.layers, pages, rows, TAPS)
        assert taps is not None
        count = sum(map(len, own))
        assert torch.equal(x[:count], hidden.raw)
        assert torch.equal(taps[:count], hidden.taps)
        scores = ops.paged.logits(x[:count], backbone.final_norm, backbone.lm_head)
        np.testing.assert_array_equal(scores.numpy(), backbone.logits(hidden.normed))
    assert torch.equal(pages[0].keys[0], torch.zeros_like(pages[0].keys[0]))
    assert not torch.equal(pages[0].keys[5], torch.zeros_like(pages[0].keys[0]))


def test_layers_without_kernels_are_named(tmp_path: Path) -> None:
    folder = write_hf_folder(tmp_path / "mixture", MIXTURE)
    layers = load_backbone(open_checkpoint(folder), CudaOps(CPU)).backbone.layers
    reason = why_not_fast(layers)
    assert reason is not None
    assert "has no gated MLP" in reason
    plain = Layer(layers[0].mixer, layers[0].channel)
    for change, word in (({"scale": 2.0}, "scale"), ({"mixer": None}, "no attention")):
        reason = why_not_fast([plain, replace(plain, **change)])
        assert reason is not None
        assert reason.startswith("layer 1")
        assert word in reason
