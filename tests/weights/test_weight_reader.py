"""The weight reader: used tensors, unused ones, and one error for all that is wrong."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from headlong.errors import TensorError
from headlong.ops.numpy.ops import NumpyOps
from headlong.weights.checkpoint import Checkpoint
from headlong.weights.tensors import StoredTensor
from headlong.weights.weight_reader import WeightReader


def make_reader(values: Mapping[str, NDArray[np.float32]], num_layers: int = 2) -> WeightReader:
    tensors = {
        name: StoredTensor(
            name,
            array.shape,
            GGMLQuantizationType.F32,
            array.reshape(-1 if array.ndim > 1 else 1, array.shape[-1]).view(np.uint8),
        )
        for name, array in values.items()
    }
    checkpoint = Checkpoint(Path("m.gguf"), "gguf", "llama", {}, tensors)
    return WeightReader(checkpoint, StoredTensor.to_float32, num_layers)


def ones(*shape: int) -> NDArray[np.float32]:
    return np.ones(shape, np.float32)


def test_matrices_are_packed_and_vectors_unpacked() -> None:
    reader = make_reader({"w": 2 * ones(2, 3), "b": ones(3)})
    assert np.array_equal(reader.matrix("w", (2, 3)), 2 * ones(2, 3))
    assert np.array_equal(reader.vector("b", 3), ones(3))
    report = reader.finish()
    assert report.used == ("w", "b")
    assert report.left_over == report.head_tensors == ()


def test_optional_vector_may_be_absent() -> None:
    reader = make_reader({"here": ones(3)})
    assert reader.optional_vector("absent", 3) is None
    assert reader.optional_vector("here", 3) is not None
    assert reader.finish().used == ("here",)


def test_asking_whether_a_tensor_exists_does_not_use_it() -> None:
    reader = make_reader({"w": ones(1, 1)})
    assert reader.has("w")
    assert not reader.has("v")
    assert reader.finish().left_over == ("w",)


def test_all_problems_come_in_one_error() -> None:
    nan, infinite = ones(3), ones(3)
    nan[1] = np.nan
    infinite[:2] = -np.inf
    reader = make_reader({"w": ones(2, 3), "v": ones(4), "n": nan, "i": infinite})
    assert reader.matrix("w", (3, 2)) is None
    assert reader.matrix("gone.w", (3, 2)) is None
    assert np.isnan(reader.vector("gone.v", 5)).all()
    assert reader.vector("v", 5).shape == (5,)
    reader.vector("n", 3)
    reader.vector("i", 3)
    with pytest.raises(TensorError) as caught:
        reader.finish()
    problem = caught.value.problem
    assert "m.gguf: 6 tensors" in problem
    assert "'w' has the shape (2, 3) instead of (3, 2)" in problem
    assert "'gone.w' is missing" in problem
    assert "'gone.v' is missing" in problem
    assert "'v' has the shape (4,) instead of (5,)" in problem
    assert "'n' holds 1 values that are NaN or infinite" in problem
    assert "'i' holds 2 values" in problem
    assert caught.value.remedy


def make_experts() -> dict[str, NDArray[np.float32]]:
    """Return matrices of gate and up for four experts, stacked."""
    rng = np.random.default_rng(1)
    return {kind: rng.random((4, 3, 5), np.float32) for kind in ("gate", "up")}


@pytest.mark.parametrize("kind", ["gate", "up"])
@pytest.mark.parametrize("layout", ["stacked", "fused", "apart"])
def test_experts_come_out_apart_from_any_layout(layout: str, kind: str) -> None:
    stacks = make_experts()
    files = {
        "stacked": {f"blk.0.ffn_{one}_exps.weight": stack for one, stack in stacks.items()},
        "fused": {"blk.0.ffn_gate_up_exps.weight": np.concatenate([*stacks.values()], axis=1)},
        "apart": {
            f"blk.0.ffn_{one}_exps.{number}.weight": stack[number]
            for one, stack in stacks.items()
            for number in range(4)
        },
    }
    reader = make_reader(files[layout])
    found = reader.experts(f"blk.0.ffn_{kind}_exps.weight", (4, 3, 5))
    assert np.array_equal(found, stacks[kind])
    used = [name for name in files[layout] if layout == "fused" or f"_{kind}_" in name]
    assert list(reader.finish().used) == used


def test_an_expert_that_is_missing_is_named() -> None:
    reader = make_reader({"blk.0.ffn_up_exps.0.weight": ones(3, 5)})
    reader.experts("blk.0.ffn_up_exps.weight", (2, 3, 5))
    reader.experts("blk.0.ffn_down_exps.weight", (2, 5, 3))
    with pytest.raises(TensorError) as caught:
        reader.finish()
    assert "2 tensors" in caught.value.problem
    assert "'blk.0.ffn_up_exps.1.weight' is missing" in caught.value.problem
    assert "'blk.0.ffn_down_exps.weight' is missing" in caught.value.problem


def test_a_precise_matrix_keeps_its_numbers_whatever_the_format() -> None:
    """Small changes of a router's scores would send rows to other experts."""
    values = np.random.default_rng(1).random((4, 32), np.float32)
    checkpoint = make_reader({"w": values})._checkpoint
    reader = WeightReader(checkpoint, partial(NumpyOps().matrix, quant="q4"), 2)
    assert np.array_equal(reader.precise_matrix("w", (4, 32)).values, values)
    assert not np.array_equal(reader.matrix("w", (4, 32)).values, values)


def test_a_flood_of_problems_is_cut_short() -> None:
    reader = make_reader({})
    for index in range(500):
        reader.vector(f"blk.{index}.v", 1)
    with pytest.raises(TensorError) as caught:
        reader.finish()
    assert "500 tensors" in caught.value.problem
    assert "and 460 more" in caught.value.problem
    assert len(caught.value.problem) < 2000


HEAD_NAMES = [
    "blk.1.nextn.eh_proj.weight",
    "blk.2.attn_q.weight",
    "mtp.fc.weight",
    "model.mtp.layers.0.norm.weight",
    "model.mtp_layers.0.norm.weight",
    "model.layers.2.self_attn.q_proj.weight",
    "language_model.model.layers.7.enorm.weight",
    "eh_proj.weight",
    "medusa_head.0.0.linear.weight",
    "extra_heads.0.attention.wq.weight",
]
OTHER_NAMES = [
    "rope_freqs.weight",
    "blk.1.attn_rot_embd",
    "blk.1.attn_q.weight",
    "vision_tower.vision_model.encoder.layers.20.mlp.fc1.weight",
    "model.layers.1.self_attn.rotary_emb.inv_freq",
]


def test_head_tensors_are_told_from_other_left_overs() -> None:
    report = make_reader({name: ones(1) for name in HEAD_NAMES + OTHER_NAMES}).finish()
    assert report.left_over == (*HEAD_NAMES, *OTHER_NAMES)
    assert report.head_tensors == tuple(HEAD_NAMES)


def test_rope_factors_are_readable() -> None:
    """Llama-3 GGUF files keep their rotary scaling in a tensor of its own."""
    reader = make_reader({"rope_freqs.weight": ones(8)})
    assert reader.optional_vector("rope_freqs.weight", 8) is not None
    assert reader.finish().left_over == ()
