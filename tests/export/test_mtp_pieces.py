"""Cutting and joining MTP layers: what has no such parts is refused by name."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from headlong.errors import TensorError
from headlong.export.mtp_pieces import HeadSizes, folder_pieces, gguf_pieces
from headlong.heads.head_weights import store_array
from headlong.weights.gguf_writer import GgufEntry

SIZES = HeadSizes(num_heads=4, plain_dim=3)


def entry(name: str, *shape: int) -> GgufEntry:
    """Return a tensor of counted numbers."""
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    return GgufEntry(name, shape, GGMLQuantizationType.F32, lambda: store_array(name, values))


def test_keys_and_values_of_latent_attention_come_apart_and_together() -> None:
    whole = entry("blk.4.attn_kv_b.weight", 20, 6)  # every head has 3 rows for keys, 2 for values
    keys, values = gguf_pieces([whole], SIZES)
    assert (keys.shape, values.shape) == ((4, 6, 3), (4, 2, 6))
    heads = whole.make().to_float32().reshape(4, 5, 6)
    assert np.array_equal(keys.make().to_float32(), heads[:, :3].swapaxes(1, 2))
    assert np.array_equal(values.make().to_float32(), heads[:, 3:])
    flat = [
        GgufEntry(one.name, (one.shape[0] * one.shape[1], one.shape[2]), one.type, one.make)
        for one in (keys, values)
    ]
    made = [
        GgufEntry(one.name, one.shape, one.type, lambda one=one: store_array(  # type: ignore[misc]
            one.name, one.make().to_float32().reshape(one.shape)))
        for one in flat
    ]  # fmt: skip
    [joined] = folder_pieces(made, SIZES)
    assert joined.name == whole.name
    assert np.array_equal(joined.make().to_float32(), whole.make().to_float32())


def test_gate_and_up_in_one_stack_come_apart() -> None:
    fused = entry("blk.4.ffn_gate_up_exps.weight", 2, 6, 5)
    values = fused.make().to_float32()
    gate, up = gguf_pieces([fused], None)
    assert np.array_equal(gate.make().to_float32(), values[:, :3])
    assert np.array_equal(up.make().to_float32(), values[:, 3:])
    singles = {one.name: one.make().to_float32() for one in folder_pieces([fused], None)}
    assert np.array_equal(singles["blk.4.ffn_gate_exps.1.weight"], values[1, :3])
    assert np.array_equal(singles["blk.4.ffn_up_exps.0.weight"], values[0, 3:])


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([entry("blk.4.attn_kv_b.weight", 18, 6)], r"\[18, 6\] has no 4 equal parts"),
        ([entry("blk.4.attn_kv_b.weight", 12, 6)], "3 rows for each head, of which 3 make keys"),
        ([entry("blk.4.attn_k_b.weight", 24, 3)], "without its attn_v_b"),
        ([entry("blk.4.ffn_gate_up_exps.weight", 2, 5, 5)], "no 4 equal parts"),
        ([entry("blk.4.ffn_up_exps.1.weight", 2, 5)], "not numbered from 0 on"),
        (
            [entry(f"blk.4.ffn_up_exps.{n}.weight", 2 + n, 5) for n in (0, 1)],
            "or differ in shape",
        ),
    ],
)
def test_what_has_no_such_parts_is_refused(entries: list[GgufEntry], message: str) -> None:
    cut = folder_pieces if "attn_k_b" in entries[0].name else gguf_pieces
    with pytest.raises(TensorError, match=message):
        list(cut(entries, SIZES))
