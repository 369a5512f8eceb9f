"""Whole sequences at once, as training reads answers, against the oracle's row after row."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from golden_models import GOLDEN
from headlong.arrays import FloatArray
from headlong.models.registry import load_backbone
from headlong.models.transformer import Backbone
from headlong.ops.numpy.ops import NumpyOps
from headlong.ops.op_set import Ops
from headlong.ops.torch.ops import TorchOps
from headlong.ops.torch.sequences import Sequences, run_sequences
from headlong.weights.checkpoint import open_checkpoint
from model_files import BOTH_FORMATS, FROM_GOLDEN, HYBRID, MAMBA, write_hf_folder

GEMMA4_KINDS = ("tiny-gemma4-shared", "tiny-gemma4-experts")
LENGTH = 21


@pytest.fixture(
    scope="module", params=[*BOTH_FORMATS, HYBRID, *FROM_GOLDEN, *GEMMA4_KINDS, "tiny-deepseek_v3"]
)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of every architecture in turn."""
    name: str = request.param
    if name.startswith("tiny-"):
        return GOLDEN / name
    return write_hf_folder(tmp_path_factory.mktemp(name), name)


def load(folder: Path, ops: Ops) -> Backbone:
    """Load a backbone."""
    return load_backbone(open_checkpoint(folder), ops).backbone


def run(
    backbone: Backbone, ids: Tensor, taps: tuple[int, ...] = ()
) -> tuple[Tensor, Tensor | None]:
    """Run sequences of equal length: (B, T)."""
    assert isinstance(backbone.ops, TorchOps)
    flat = ids.reshape(-1)
    x = backbone.embed(flat.numpy())
    beside = None if backbone.per_layer is None else backbone.per_layer_rows(flat.numpy(), x)
    return run_sequences(
        backbone.ops, x, backbone.layers, Sequences(ids.shape[1], beside), tap_layers=taps
    )


def assert_close(found: Tensor, expected: FloatArray) -> None:
    """Compare up to rounding, which counts against the size of all numbers."""
    assert np.abs(found.numpy() - expected).max() <= 2e-4 * max(1.0, np.abs(expected).max())


def test_whole_sequences_equal_the_oracle(folder: Path) -> None:
    ours = load(folder, TorchOps(torch.device("cpu"), is_exact=False))
    theirs = load(folder, NumpyOps())
    ids = np.random.default_rng(7).integers(3, 60, (2, LENGTH))
    x, taps = run(ours, torch.from_numpy(ids), (1, 0))
    expected = theirs.forward(list(ids), [theirs.make_cache() for _ in ids], (1, 0))
    assert_close(x, expected.raw)
    assert taps is not None
    assert expected.taps is not None
    assert_close(taps, expected.taps)


@pytest.mark.parametrize("name", [MAMBA, "tiny-qwen3_5"])
def test_padding_does_not_reach_the_states_that_are_kept(name: str) -> None:
    ops = TorchOps(torch.device("cpu"), is_exact=False)
    backbone = load(GOLDEN / name, ops)
    ids = torch.from_numpy(np.random.default_rng(7).integers(3, 60, (3, 9)))
    stops = torch.tensor([9, 4, 0])

    def states(ids: Tensor, stops: Tensor | None) -> dict[int, tuple[Tensor, Tensor]]:
        found: dict[int, tuple[Tensor, Tensor]] = {}
        sequences = Sequences(
            ids.shape[1], keep=lambda i, *both: found.__setitem__(i, both), stops=stops
        )
        x = backbone.embed(ids.reshape(-1).numpy())
        run_sequences(ops, x, backbone.layers, sequences)
        return found

    padded, short = states(ids, stops), states(ids[1:2, :4], None)
    recurrent = [i for i, layer in enumerate(backbone.layers) if hasattr(layer.mixer, "decay_rate")]
    assert recurrent
    for index in recurrent:
        memory, window = padded[index]
        assert_close(memory[1], short[index][0][0].numpy())
        assert_close(window[:, 1], short[index][1][:, 0].numpy())
        assert not memory[2].any()
