"""MLX folders: exact in numpy whatever mlx-lm renamed or moved, refused where odd."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from float8_files import write_safetensors
from headlong.arrays import FloatArray
from headlong.errors import CheckpointError, TensorError
from headlong.heads.head_weights import store_array
from headlong.models.registry import load_backbone
from headlong.ops.numpy.ops import NumpyOps
from headlong.weights.checkpoint import open_checkpoint
from headlong.weights.mlx_groups import (
    PACKED,
    can_pack,
    describe_groups,
    join_group_scales,
    pack_matrix,
    split_components,
)
from headlong.weights.safetensors_file import read_safetensors
from headlong.weights.tensors import AffineType, StoredTensor
from mlx_files import from_type, meaning, quantise, sanitised, write_float_folder, write_mlx_folder
from model_files import HYBRID, LATENT, MIXTURE, write_hf_folder
from native_parts import native_ops

IDS = np.random.default_rng(1).integers(3, 90, 20)
CHANGED = (HYBRID, MIXTURE, LATENT)
"""Architectures whose names and layouts mlx-lm changes."""


def logits(path: Path) -> FloatArray:
    """Load a model on the oracle backend and read a prompt."""
    backbone = load_backbone(open_checkpoint(path), NumpyOps()).backbone
    return backbone.logits(backbone.forward([IDS], [backbone.make_cache()]).normed)


def joined_matrix(
    tmp_path: Path, bits: int, group_size: int, dtype: str = "F16"
) -> tuple[StoredTensor, FloatArray]:
    """Return a matrix read from a file, and what it means."""
    values = np.random.default_rng(3).normal(size=(70, 256)).astype(np.float32)
    words, scales, biases = quantise(values, bits, group_size, dtype)
    stored = {"w.weight": ("U32", words), "w.scales": (dtype, scales), "w.biases": (dtype, biases)}
    write_safetensors(tmp_path / "m", stored)
    config = {"quantization": {"group_size": group_size, "bits": bits}}
    tensors = join_group_scales(config, read_safetensors(tmp_path / "m"))
    assert list(tensors) == ["w.weight"]
    assert tensors["w.weight"].num_bytes == words.nbytes + scales.nbytes + biases.nbytes
    return tensors["w.weight"], meaning(words, scales, biases, bits, dtype)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("dtype", ["F16", "BF16", "F32"])
def test_levels_of_any_width_mean_what_mlx_says(
    tmp_path: Path, bits: int, group_size: int, dtype: str
) -> None:
    tensor, meant = joined_matrix(tmp_path, bits, group_size, dtype)
    assert tensor.type == AffineType(bits, group_size)
    assert np.array_equal(tensor.to_float32(), meant)


def test_rows_keep_their_scales_wherever_they_go(tmp_path: Path) -> None:
    tensor, meant = joined_matrix(tmp_path, 3, 64)
    order = np.random.default_rng(4).permutation(70)[:50]
    moved = tensor.with_rows(order)
    assert np.array_equal(moved.to_float32(), meant[order])
    assert np.array_equal(moved.cut(7, 29).to_float32(), meant[order][7:29])
    blocks = [block.to_float32() for block in moved.row_blocks(2000)]
    assert len(blocks) > 1
    assert np.array_equal(np.concatenate(blocks), meant[order])
    turned = tensor.with_transposed_blocks(2).to_float32().reshape(2, 256, 35)
    assert np.array_equal(turned.swapaxes(1, 2).reshape(70, 256), meant)


@pytest.mark.parametrize("architecture", CHANGED)
def test_what_mlx_lm_renames_and_moves_is_the_same_model(tmp_path: Path, architecture: str) -> None:
    """Its norms hold 1 + w already, and must not be shifted twice."""
    theirs = write_float_folder(tmp_path / "mlx", architecture, sanitised(architecture))
    ours = write_hf_folder(tmp_path / "hf", architecture)
    assert np.array_equal(logits(theirs), logits(ours))


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma3", *CHANGED])
def test_a_quantised_model_is_exact_in_numpy(tmp_path: Path, architecture: str) -> None:
    """Untied and tied, with embeddings, LM heads and stacks of experts quantised as well."""
    meant = write_mlx_folder(tmp_path / "packed", architecture)
    floats = write_float_folder(tmp_path / "floats", architecture, meant)
    assert np.array_equal(logits(tmp_path / "packed"), logits(floats))


def test_single_matrices_may_have_other_bits(tmp_path: Path) -> None:
    stem = "model.layers.1.mlp.down_proj"
    meant = write_mlx_folder(tmp_path / "packed", "qwen3", own={stem: 6, "lm_head": 8})
    floats = write_float_folder(tmp_path / "floats", "qwen3", meant)
    tensors = open_checkpoint(tmp_path / "packed").tensors
    assert tensors["blk.1.ffn_down.weight"].type == AffineType(6, 32)
    assert tensors["blk.0.ffn_down.weight"].type == AffineType(4, 32)
    assert tensors["output.weight"].type == AffineType(8, 32)
    assert np.array_equal(logits(tmp_path / "packed"), logits(floats))


def test_a_group_size_of_null_is_the_shared_one(tmp_path: Path) -> None:
    """`mlx_lm.convert -q --quant-predicate mixed_4_6` writes that for every matrix."""
    joined_matrix(tmp_path, 6, 64)
    own = {"group_size": None, "bits": 6, "mode": "affine"}
    config = {"quantization": {"group_size": 64, "bits": 4, "mode": "affine", "w": own}}
    tensors = join_group_scales(config, read_safetensors(tmp_path / "m"))
    assert tensors["w.weight"].type == AffineType(6, 64)


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({}, "has no quantization"),
        ({"quantization": {"bits": 7, "group_size": 64}}, "7 bits"),
        ({"quantization": {"bits": True, "group_size": 64}}, "True bits"),
        ({"quantization": {"bits": 4, "group_size": 48}}, "groups of 48"),
        ({"quantization": {"bits": 4, "group_size": [64]}}, "groups of"),
        ({"quantization": {"bits": 4, "group_size": 32}}, "not of 4 bits in groups of 32"),
        ({"quantization": {"bits": 8, "group_size": 64}}, "not of 8 bits"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    tmp_path: Path, config: dict[str, Any], match: str
) -> None:
    joined_matrix(tmp_path, 4, 64)
    with pytest.raises(TensorError, match=match):
        join_group_scales(config, read_safetensors(tmp_path / "m"))


MXFP4 = {"bits": 4, "group_size": 32, "mode": "mxfp4"}


@pytest.mark.parametrize(
    ("own", "match"),
    [
        (MXFP4, "m is quantised in MLX's mode 'mxfp4'"),
        ({"bits": 4, "group_size": 64, "model.l": MXFP4}, "'model.l' is quantised in MLX's mode"),
    ],
)
def test_other_modes_are_refused_by_name(tmp_path: Path, own: dict[str, Any], match: str) -> None:
    """Scales of theirs are bytes, which is not what is wrong with the folder."""
    write_mlx_folder(tmp_path / "m", "llama")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    config |= {"quantization": own, "quantization_config": own}
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    words = {
        "w.weight": ("U32", np.zeros((2, 8), "<u4")),
        "w.scales": ("U8", np.zeros((2, 2), "u1")),
    }
    write_safetensors(tmp_path / "m" / "model.safetensors", words)
    with pytest.raises(TensorError, match=match):
        open_checkpoint(tmp_path / "m")


def test_a_matrix_that_lost_its_biases_is_refused(tmp_path: Path) -> None:
    joined_matrix(tmp_path, 4, 64)
    tensors = read_safetensors(tmp_path / "m")
    del tensors["w.biases"]
    with pytest.raises(TensorError, match="no biases"):
        join_group_scales({"quantization": {"bits": 4, "group_size": 64}}, tensors)


@pytest.mark.parametrize(("dtype", "shape"), [("F32", (4, 8)), ("U32", (8,)), ("U32", ())])
def test_other_tensors_stay_as_they_are(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    """What is called scales need not belong to packed levels."""
    values = np.zeros(shape, "<f4" if dtype == "F32" else "<u4")
    stored = {"w.weight": (dtype, values), "w.scales": ("F32", np.zeros(4, np.float32))}
    write_safetensors(tmp_path / "m", stored)
    tensors = read_safetensors(tmp_path / "m")
    assert join_group_scales({}, tensors) == tensors


def test_a_folder_whose_config_lost_its_quantization_says_so(tmp_path: Path) -> None:
    write_mlx_folder(tmp_path, "llama")
    config = json.loads((tmp_path / "config.json").read_text())
    del config["quantization"], config["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="quantised, but config"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("dtype", ["F16", "BF16", "F32"])
def test_the_test_s_writer_packs_as_mlx_does(bits: int, dtype: str) -> None:
    mx: Any = pytest.importorskip("mlx.core")
    kind = {"F16": mx.float16, "BF16": mx.bfloat16, "F32": mx.float32}[dtype]
    values = np.random.default_rng(5).normal(size=(9, 256)).astype(np.float32)
    for group_size in (32, 64, 128):
        given = mx.array(values).astype(kind)
        packed = mx.quantize(given, group_size=group_size, bits=bits)
        words, scales, biases = quantise(values, bits, group_size, dtype)
        assert np.array_equal(np.array(packed[0]), words)
        for theirs, ours in zip(packed[1:], (scales, biases), strict=True):
            assert np.array_equal(np.array(theirs.astype(mx.float32)), from_type(ours, dtype))
        if dtype == "F32":
            found = mx.dequantize(*packed, group_size=group_size, bits=bits)
            assert np.array_equal(np.array(found), meaning(words, scales, biases, bits, dtype))


def test_packed_matrix_is_what_packing_to_q4_leaves() -> None:
    """Bit for bit, whatever the numbers' sizes; a constant group has no scale."""
    values = np.random.default_rng(5).normal(size=(37, 96)).astype(np.float32)
    values[3, 32:64] = 0.25
    values *= np.logspace(-6, 0, 37, dtype=np.float32)[:, None]
    tensor = store_array("fc.weight", values)
    packed = pack_matrix(tensor)
    assert packed.type == PACKED
    assert packed.num_bytes == values.size * 5 // 8
    meant = packed.to_float32()
    np.testing.assert_allclose(meant, values, atol=0.2)
    ops, rows = native_ops("portable"), np.arange(37)
    ours, theirs = ops.matrix(packed), ops.matrix(tensor, "q4")
    assert ours.format == theirs.format == "q4"
    assert ours.num_bytes == theirs.num_bytes
    assert np.array_equal(ops.embed(ours, rows), meant)
    assert np.array_equal(ops.embed(theirs, rows), meant)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e6])
def test_numbers_that_four_bits_cannot_hold_are_refused(value: float) -> None:
    values = np.ones((2, 64))
    values[1, 40] = value
    with pytest.raises(TensorError, match=r"a\.weight' has numbers too large, or not finite"):
        pack_matrix(store_array("a.weight", values))


def test_packed_matrix_is_whole_again_from_its_parts() -> None:
    values = np.random.default_rng(6).normal(size=(5, 64)).astype(np.float32)
    packed = pack_matrix(store_array("a.b.weight", values))
    parts = {part.name: part for part in split_components(packed)}
    assert list(parts) == ["a.b.weight", "a.b.scales", "a.b.biases"]
    groups = describe_groups([packed, store_array("norm.weight", values[0])])
    assert groups == {"group_size": 32, "bits": 4}
    joined = join_group_scales({"quantization": groups}, parts)["a.b.weight"]
    assert joined.shape == packed.shape
    assert np.array_equal(joined.to_float32(), packed.to_float32())


def test_only_matrices_of_whole_groups_can_be_packed() -> None:
    shapes = {(64,): False, (3, 64): True, (3, 40): False, (2, 3, 64): False}
    for shape, expected in shapes.items():
        assert can_pack(store_array("x", np.zeros(shape))) is expected


def test_matrices_packed_in_two_ways_have_no_one_description(tmp_path: Path) -> None:
    eight, _ = joined_matrix(tmp_path, 8, 64)
    packed = pack_matrix(store_array("a.weight", np.ones((2, 32))))
    assert describe_groups([]) is None
    with pytest.raises(TensorError, match="MLX4_32, MLX8_64"):
        describe_groups([packed, eight])
