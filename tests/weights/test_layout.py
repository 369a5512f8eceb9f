"""One layout: what GGUF and safetensors store differently comes out the same."""

from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from headlong.arrays import FloatArray
from headlong.errors import ArchitectureError, CheckpointError, TensorError
from headlong.weights.layout import unify_gguf, unify_safetensors
from headlong.weights.tensors import StoredTensor
from model_files import HIDDEN_SIZE, NUM_HEADS, NUM_KV_HEADS, gguf_values, tiny_tensors

HEADS = {
    "llama.attention.head_count": NUM_HEADS,
    "llama.attention.head_count_kv": NUM_KV_HEADS,
}


def stored(
    name: str, values: FloatArray, kind: GGMLQuantizationType = GGMLQuantizationType.F32
) -> StoredTensor:
    packed = quantize(values, kind).view(np.uint8)
    rows = values.shape[0] if values.ndim == 2 else 1
    return StoredTensor(name, values.shape, kind, packed.reshape(rows, -1))


@pytest.mark.parametrize("kind", ["F32", "F16", "Q4_1", "Q8_0"])
def test_llama_rows_of_packed_weights_return_to_their_places(kind: str) -> None:
    packed = GGMLQuantizationType[kind]
    for tensor in tiny_tensors("llama"):
        if tensor.values.ndim == 1:
            continue
        name = tensor.gguf_name
        interleaved = stored(name, gguf_values("llama", tensor), packed)
        unified = unify_gguf("llama", HEADS, {name: interleaved})[name]
        plain = stored(name, tensor.values, packed)
        assert unified.type == packed
        assert unified.data.tobytes() == plain.data.tobytes()


def test_llama_biases_move_with_their_rows() -> None:
    """A Llama with attention biases would rotate the wrong halves if only the weights moved."""
    head = [0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15]  # two halves, interleaved
    bias = np.array([*head, *(16 + i for i in head)], np.float32)
    name = "blk.0.attn_k.bias"
    unified = unify_gguf("llama", HEADS, {name: stored(name, bias)})[name]
    assert unified.to_float32().tolist() == list(range(32))


def test_key_heads_default_to_query_heads() -> None:
    name = "blk.0.attn_k.weight"
    tensor = stored(name, np.arange(32 * 4, dtype=np.float32).reshape(32, 4))
    default = unify_gguf("llama", {"llama.attention.head_count": 4}, {name: tensor})[name]
    given = unify_gguf(
        "llama",
        {"llama.attention.head_count": 2, "llama.attention.head_count_kv": 4},
        {name: tensor},
    )[name]
    assert np.array_equal(default.to_float32(), given.to_float32())


def test_a_gate_of_one_output_becomes_a_matrix() -> None:
    name = "blk.0.ffn_gate_inp_shexp.weight"
    tensor = stored(name, np.arange(4, dtype=np.float32))
    unified = unify_gguf("qwen35moe", {}, {name: tensor})[name]
    assert unified.to_float32().tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "gemma3"])
def test_other_gguf_files_are_left_alone(architecture: str) -> None:
    name = "blk.0.attn_q.weight"
    tensor = stored(name, np.ones((4, 4), np.float32))
    assert unify_gguf(architecture, {}, {name: tensor})[name] is tensor


@pytest.mark.parametrize("shape", [(30, 4), (9,), (2, 32, 4)])
def test_rows_that_heads_cannot_share_are_refused(shape: tuple[int, ...]) -> None:
    name = "blk.0.attn_q.weight"
    data = np.zeros((int(np.prod(shape[:-1])), 4 * shape[-1]), np.uint8)
    tensor = StoredTensor(name, shape, GGMLQuantizationType.F32, data)
    with pytest.raises(TensorError, match=r"blk\.0\.attn_q\.weight has the shape"):
        unify_gguf("llama", HEADS, {name: tensor})


@pytest.mark.parametrize("count", [0, -1, 2**40, "four", True, None])
def test_impossible_head_count_is_refused(count: Any) -> None:
    with pytest.raises(CheckpointError, match="head_count"):
        unify_gguf("llama", {"llama.attention.head_count": count}, {})


@pytest.mark.parametrize("counts", [[4, 2], (4, 2)])
def test_head_count_by_layer_is_called_unread_not_damaged(counts: Any) -> None:
    with pytest.raises(ArchitectureError, match="head_count differs by layer"):
        unify_gguf("llama", {"llama.attention.head_count": counts}, {})


def test_gemma_norms_gain_the_one_that_gguf_stores() -> None:
    tensors = {
        tensor.gguf_name: stored(tensor.gguf_name, tensor.values, GGMLQuantizationType.F16)
        for tensor in tiny_tensors("gemma3")
    }
    unified = unify_safetensors("gemma3", tensors)
    moved = [name for name in tensors if unified[name] is not tensors[name]]
    assert len(moved) == 6 * 6 + 1
    for name in moved:
        assert "_norm" in name
        expected = tensors[name].to_float32() + 1
        assert np.array_equal(unified[name].to_float32(), expected)


def test_only_gemma_text_norms_gain_one() -> None:
    values = np.zeros(HIDDEN_SIZE, np.float32)
    vision = "multi_modal_projector.mm_soft_emb_norm.weight"
    assert not unify_safetensors("gemma3", {vision: stored(vision, values)})[vision].data.any()
    name = "blk.0.attn_norm.weight"
    assert not unify_safetensors("qwen3", {name: stored(name, values)})[name].data.any()
