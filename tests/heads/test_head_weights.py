"""HeadParts refuses heads that are incomplete, of other sizes or broken, and says how."""

import re
from dataclasses import replace

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from headlong.config import HeadQuant
from headlong.errors import HeadError
from headlong.heads.head_weights import (
    FloatType,
    HeadParts,
    HeadWeights,
    check_vocabulary,
    choose_quant,
    list_names,
    store_array,
)
from headlong.models.transformer import Backbone
from headlong.ops.numpy.ops import NumpyOps
from headlong.ops.numpy.weights import round_to
from headlong.weights.tensors import StoredTensor
from random_heads import random_eagle3


def make_parts(**arrays: np.ndarray) -> HeadParts:
    """Return the parts of a head that consists of these arrays."""
    tensors = {name: store_array(name, values) for name, values in arrays.items()}
    return HeadParts(HeadWeights("nextn", {}, tensors), NumpyOps())


@pytest.mark.parametrize("float_type", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(5,), (3, 8), (2, 3, 4)])
def test_stored_arrays_come_back(float_type: FloatType, shape: tuple[int, ...]) -> None:
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)  # exact in every type
    stored = store_array("x", values, float_type)
    assert stored.shape == shape
    assert np.array_equal(stored.to_float32(), values)


def test_all_missing_tensors_are_listed() -> None:
    with pytest.raises(HeadError, match="lacks 2 of 3 tensors: b, c"):
        make_parts(a=np.zeros(2)).check({"a": (2,), "b": (2,), "c": (2,)})


def test_all_wrong_shapes_are_listed_with_both_sides() -> None:
    parts = make_parts(a=np.zeros(2), b=np.zeros((2, 3)))
    with pytest.raises(HeadError, match=r"a is \[2\], should be \[3\], b is \[2, 3\], should be"):
        parts.check({"a": (3,), "b": (2, 4)})


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none_are_refused(value: float) -> None:
    values = np.zeros((300, 20_000), dtype=np.float32)  # more than one block of rows
    values[299, 19_999] = value
    with pytest.raises(HeadError, match="NaN or infinite numbers in b"):
        make_parts(a=np.zeros(2), b=values).check({"a": (2,), "b": (300, 20_000)})


def test_unused_tensors_and_bytes_are_counted() -> None:
    parts = make_parts(a=np.zeros(2), b=np.zeros(3))
    parts.check({"b": (3,)})
    assert parts.unused_tensors == ("a",)
    assert parts.num_bytes == 12


def test_leftovers_in_a_layer_are_refused_but_rotary_tables_are_not() -> None:
    tensors = {"layer.x": np.zeros(2), "layer.self_attn.rotary_emb.inv_freq": np.zeros(2)}
    with pytest.raises(HeadError, match=r"computes: layer\.x\."):
        make_parts(**tensors).refuse_leftovers("layer.")
    make_parts(**tensors).refuse_leftovers("other.")


def test_long_lists_of_names_are_cut() -> None:
    assert list_names([str(i) for i in range(14)]).endswith("11 and 2 more")


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        ([0, 96], "ids 0…96; the backbone has 0…95"),
        ([-1, 5], "ids -1…5"),
        ([5, 5], "2 draft tokens to only 1 ids"),
        (list(range(97)), "drafts from 97 tokens; the backbone has 96"),
        ([], "drafts from 0 tokens"),
    ],
)
def test_vocabulary_of_another_backbone_is_refused(
    backbone: Backbone, vocabulary: list[int], message: str
) -> None:
    weights = random_eagle3(backbone.config)
    config = {**weights.config, "draft_vocab_size": len(vocabulary)}
    ids = np.array(vocabulary, dtype=np.int64)
    with pytest.raises(HeadError, match=message):
        check_vocabulary(replace(weights, config=config, vocabulary=ids), 96)


def test_missing_draft_map_is_refused(backbone: Backbone) -> None:
    weights = replace(random_eagle3(backbone.config, draft_vocab_size=40), vocabulary=None)
    with pytest.raises(HeadError, match=r"announces 40 draft tokens, but maps 96.*d2t"):
        check_vocabulary(weights, 96)


def test_auto_is_the_format_a_head_was_made_for() -> None:
    assert choose_quant("auto", {"headlong_quant": "q4"}) == "q4"
    assert choose_quant("auto", {}) == "q8"
    assert choose_quant("f16", {"headlong_quant": "q4"}) == "f16"
    assert choose_quant("stored", {"headlong_quant": "q4"}) is None


@pytest.mark.parametrize("made_for", ["q3", 4, None, ["q4"]])
def test_a_format_nobody_knows_is_refused_by_name(made_for: object) -> None:
    words = re.escape(f"headlong_quant = {made_for!r}")
    with pytest.raises(HeadError, match=rf"{words}.*--head-quant"):
        choose_quant("auto", {"headlong_quant": made_for})


def test_matrix_that_a_file_holds_quantised_is_packed_as_it_is() -> None:
    values = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    data = quantize(values, GGMLQuantizationType.Q8_0)
    stored = StoredTensor("fc.weight", (4, 64), GGMLQuantizationType.Q8_0, data)
    floats, ops = store_array("fc.weight", values), NumpyOps()
    for tensor, is_kept in ((stored, True), (floats, False)):
        weights = HeadWeights("nextn", {}, {"fc.weight": tensor}, quant="q4")
        parts = HeadParts(weights, ops)
        parts.check({"fc.weight": (4, 64)})
        packed = ops.project(np.eye(64, dtype=np.float32), parts.linear("fc")).T
        assert np.array_equal(packed, tensor.to_float32()) is is_kept


@pytest.mark.parametrize(("asked", "is_kept"), [("auto", True), ("stored", True), ("q8", False)])
def test_a_format_that_was_named_packs_quantised_matrices_too(
    asked: HeadQuant, is_kept: bool
) -> None:
    values = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    weights = HeadWeights("nextn", {}, {"fc.weight": store_array("fc.weight", values)})
    weights, ops = weights.in_four_bits(), NumpyOps()
    parts = HeadParts(weights.packed(asked), ops)
    parts.check({"fc.weight": (4, 64)})
    packed = ops.project(np.eye(64, dtype=np.float32), parts.linear("fc")).T
    in_file = weights.tensors["fc.weight"].to_float32()
    assert np.array_equal(packed, in_file if is_kept else round_to(in_file, "q8"))
    assert np.array_equal(packed, in_file) is is_kept
