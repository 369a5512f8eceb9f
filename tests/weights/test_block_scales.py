"""FP8 weights with scales of blocks: exact in numpy, to 8 bits natively, refused where odd."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from float8_files import MEANINGS, to_float8, write_float8_folder, write_safetensors
from headlong.arrays import FloatArray
from headlong.errors import TensorError
from headlong.models.registry import load_backbone
from headlong.ops.backends import make_ops
from headlong.ops.blocks import Linear
from headlong.ops.numpy.ops import NumpyOps
from headlong.weights.block_scales import join_block_scales
from headlong.weights.checkpoint import open_checkpoint
from headlong.weights.safetensors_file import read_safetensors
from headlong.weights.tensors import FloatType, StoredTensor
from model_files import LATENT, hf_config, write_hf_folder

IDS = np.random.default_rng(1).integers(3, 90, 20)
SIZES = (70, 300)
BLOCK = (32, 128)


def logits(path: Path) -> FloatArray:
    """Load a model on the oracle backend and read a prompt."""
    backbone = load_backbone(open_checkpoint(path), NumpyOps()).backbone
    return backbone.logits(backbone.forward([IDS], [backbone.make_cache()]).normed)


def joined_matrix(tmp_path: Path) -> tuple[StoredTensor, FloatArray]:
    """Return a matrix in FP8, read from a file, and what it means."""
    values = np.random.default_rng(3).normal(size=SIZES).astype(np.float32)
    data, scales = to_float8(values, BLOCK)
    stored = {"w": ("F8_E4M3", data), "w_scale_inv": ("F32", scales)}
    write_safetensors(tmp_path / "m.safetensors", stored)
    config = {"quantization_config": {"weight_block_size": list(BLOCK)}}
    tensors = join_block_scales(config, read_safetensors(tmp_path / "m.safetensors"))
    assert list(tensors) == ["w"]
    rows, columns = (np.arange(size) // step for size, step in zip(SIZES, BLOCK, strict=True))
    return tensors["w"], MEANINGS[data] * scales[rows][:, columns]


def test_every_byte_means_what_the_format_says(tmp_path: Path) -> None:
    everything = np.arange(256, dtype=np.uint8).reshape(2, 128)
    stored = {"w": ("F8_E4M3", everything), "w_scale_inv": ("F32", np.ones((1, 1), np.float32))}
    write_safetensors(tmp_path / "m.safetensors", stored)
    tensor = join_block_scales({}, read_safetensors(tmp_path / "m.safetensors"))["w"]
    assert tensor.type is FloatType.F8_E4M3
    assert np.array_equal(tensor.to_float32().reshape(-1), MEANINGS, equal_nan=True)
    assert MEANINGS[0x7E] == 448
    assert MEANINGS[0x01] == 2.0**-9


def test_rows_keep_their_scales_wherever_they_go(tmp_path: Path) -> None:
    tensor, meant = joined_matrix(tmp_path)
    assert np.array_equal(tensor.to_float32(), meant)
    order = np.random.default_rng(4).permutation(SIZES[0])[:50]
    moved = tensor.with_rows(order)
    assert np.array_equal(moved.to_float32(), meant[order])
    assert np.array_equal(moved.with_rows(np.arange(50)[::-1]).to_float32(), meant[order][::-1])
    assert np.array_equal(moved.cut(7, 29).to_float32(), meant[order][7:29])
    blocks = [block.to_float32() for block in moved.row_blocks()]
    assert np.array_equal(np.concatenate(blocks), meant[order])


def test_turned_blocks_hold_the_same_numbers(tmp_path: Path) -> None:
    tensor, meant = joined_matrix(tmp_path)
    turned = tensor.with_transposed_blocks(2).to_float32().reshape(2, SIZES[1], SIZES[0] // 2)
    assert np.array_equal(turned.swapaxes(1, 2).reshape(SIZES), meant)


def test_a_model_in_fp8_is_exact_in_numpy(tmp_path: Path) -> None:
    """Its blocks end inside matrices, as those of kv_a and of heads do in DeepSeek-V3."""
    meant = write_float8_folder(tmp_path / "fp8", LATENT, (24, 32))
    folder = write_hf_folder(tmp_path / "f32", LATENT)
    save_file(meant, folder / "model.safetensors")
    assert np.array_equal(logits(tmp_path / "fp8"), logits(folder))


def test_native_packs_fp8_to_8_bits(tmp_path: Path) -> None:
    write_float8_folder(tmp_path, LATENT, (128, 128))
    tensor = open_checkpoint(tmp_path).tensors["blk.0.attn_q_a.weight"]
    ops = make_ops("native")
    packed = ops.matrix(tensor)
    assert packed.format == ops.matrix_format(tensor) == "q8"
    assert ops.matrix_bytes(tensor) == 32 * 64 * 34 // 32
    x = np.random.default_rng(2).normal(size=(5, 64)).astype(np.float32)
    exact = x @ tensor.to_float32().T
    found = ops.project(x, Linear(packed))
    assert np.linalg.norm(found - exact) < 0.02 * np.linalg.norm(exact)


def test_matrices_without_scales_are_refused_when_they_are_read(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "m", {"w": ("F8_E4M3", np.zeros((2, 3), np.uint8))})
    tensor = join_block_scales({}, read_safetensors(tmp_path / "m"))["w"]
    with pytest.raises(TensorError, match=r"Tensor w .* without scales"):
        NumpyOps().matrix(tensor)


@pytest.mark.parametrize(
    ("shape", "scales", "dtype"),
    [
        ((200, 300), (2, 2), "F32"),
        ((200, 300), (1,), "F32"),
        ((200, 300), (2, 3), "F8_E4M3"),
        ((2, 100, 300), (1, 1), "F32"),
    ],
)
def test_scales_that_do_not_fit_are_refused(
    tmp_path: Path, shape: tuple[int, ...], scales: tuple[int, ...], dtype: str
) -> None:
    kind = np.uint8 if dtype == "F8_E4M3" else np.float32
    stored = {
        "w": ("F8_E4M3", np.zeros(shape, np.uint8)),
        "w_scale_inv": (dtype, np.ones(scales, kind)),
    }
    write_safetensors(tmp_path / "m", stored)
    with pytest.raises(TensorError, match="do not fit a matrix"):
        join_block_scales({}, read_safetensors(tmp_path / "m"))


@pytest.mark.parametrize("size", ["128", [128], [128, 0], [128, 2**40], [True, 128]])
def test_block_sizes_that_are_none_are_refused(size: object) -> None:
    with pytest.raises(TensorError, match="weight_block_size"):
        join_block_scales({"quantization_config": {"weight_block_size": size}}, {})


def test_other_tensors_stay_as_they_are(tmp_path: Path) -> None:
    """A scale beside a matrix that is no FP8 is a tensor like any other."""
    stored = {
        "w": ("F32", np.zeros((2, 2), np.float32)),
        "w_scale_inv": ("F32", np.ones((1, 1), np.float32)),
    }
    write_safetensors(tmp_path / "m", stored)
    tensors = read_safetensors(tmp_path / "m")
    assert join_block_scales(hf_config(LATENT), tensors) == tensors
