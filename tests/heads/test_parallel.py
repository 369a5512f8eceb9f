"""Medusa and Meta heads against a plain recomputation, and what they must refuse."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from headlong.errors import HeadError
from headlong.heads.head import ParallelHeads, RecursiveHead
from headlong.heads.head_files import build_head
from headlong.heads.head_weights import HeadWeights, store_array
from headlong.heads.parallel import build_medusa, build_meta
from headlong.models.transformer import Backbone
from headlong.ops.op_set import Array
from model_files import ARCHITECTURES
from passages import Passage, read_passage
from plain_maths import PlainLayer, rms, silu
from random_heads import arrays_of, random_medusa, random_meta

DEPTHS = (1, 2, 3)


def make_heads(kind: str, backbone: Backbone) -> ParallelHeads:
    """Build random heads of a kind."""
    make = random_medusa if kind == "medusa" else random_meta
    heads = build_head(make(backbone.config), backbone)
    assert isinstance(heads, ParallelHeads)
    return heads


def observe(heads: ParallelHeads, passage: Passage) -> Array:
    """Run fresh heads over a passage in one go."""
    return heads.states(
        heads.features(passage.hidden), [heads.make_cache()], [len(passage.next_ids)]
    )


def test_medusa_equals_plain_maths(backbone: Backbone) -> None:
    weights = random_medusa(backbone.config, draft_vocab_size=40)
    heads = build_medusa(weights, backbone)
    passage, tensors = read_passage(backbone), arrays_of(weights)
    states = observe(heads, passage)
    assert states.shape == (3, 9, 64)
    for depth in DEPTHS:
        x = passage.hidden.normed.astype(np.float64)
        for block in range(2):
            name = f"blocks.{depth - 1}.layers.{block}"
            x = x + silu(x @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"])
        np.testing.assert_allclose(states[depth - 1], x, rtol=1e-3, atol=1e-4)
        logits = heads.logits(states[depth - 1], depth)
        expected = x @ tensors[f"lm_heads.{depth - 1}.weight"].T
        np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_meta_equals_plain_maths(
    tiny_backbone: Callable[[str], Backbone], architecture: str
) -> None:
    backbone = tiny_backbone(architecture)
    weights = random_meta(backbone.config)
    heads = build_meta(weights, backbone)
    passage, config = read_passage(backbone, heads.tap_layers), backbone.config
    states = observe(heads, passage)
    assert passage.hidden.taps is not None
    for depth in DEPTHS:
        prefix = f"extra_heads.{depth - 1}."
        layer = PlainLayer(arrays_of(weights), prefix, config, backbone.config.rope_theta)
        x = layer.run(passage.hidden.taps.astype(np.float64))
        np.testing.assert_allclose(states[depth - 1], x, rtol=1e-3, atol=2e-4)
        normed = rms(x, backbone.final_norm.weight, config.norm_eps).astype(np.float32)
        logits = heads.logits(states[depth - 1], depth)
        np.testing.assert_allclose(logits, backbone.logits(normed), rtol=1e-3, atol=2e-3)


def test_meta_heads_stand_beside_the_last_layer(backbone: Backbone) -> None:
    """A head that copies the backbone's last layer must give the backbone's own last state."""
    heads = build_meta(random_meta(backbone.config, num_depths=1), backbone)
    heads = replace(heads, layers=(backbone.layers[-1],))
    passage = read_passage(backbone, heads.tap_layers)
    assert observe(heads, passage)[0].tobytes() == passage.hidden.raw.tobytes()


@pytest.mark.parametrize("kind", ["medusa", "meta"])
@pytest.mark.parametrize("chunk", [1, 4, 8])
def test_chunked_observe_equals_one_shot(backbone: Backbone, kind: str, chunk: int) -> None:
    heads = make_heads(kind, backbone)
    passage = read_passage(backbone, heads.tap_layers, num_rows=11)
    cache, parts = heads.make_cache(), []
    for first in range(0, 11, chunk):
        rows = passage.hidden.rows(first, first + chunk)
        parts.append(heads.states(heads.features(rows), [cache], [len(rows.raw)]))
        assert cache.num_pending == len(rows.raw)
        cache.commit(len(rows.raw))
    assert np.concatenate(parts, axis=1).tobytes() == observe(heads, passage).tobytes()


@pytest.mark.parametrize("kind", ["medusa", "meta"])
def test_two_sequences_equal_each_alone(backbone: Backbone, kind: str) -> None:
    heads = make_heads(kind, backbone)
    one = read_passage(backbone, heads.tap_layers, num_rows=5, seed=1)
    two = read_passage(backbone, heads.tap_layers, num_rows=8, seed=2)
    joined = np.concatenate([heads.features(one.hidden), heads.features(two.hidden)])
    together = heads.states(joined, [heads.make_cache(), heads.make_cache()], [5, 8])
    alone = np.concatenate([observe(heads, one), observe(heads, two)], axis=1)
    assert together.tobytes() == alone.tobytes()


@pytest.mark.parametrize("kind", ["medusa", "meta"])
def test_heads_are_parallel(backbone: Backbone, kind: str) -> None:
    heads = make_heads(kind, backbone)
    shapes: list[type] = [RecursiveHead, ParallelHeads]
    assert [isinstance(heads, shape) for shape in shapes] == [False, True]
    assert heads.num_depths == 3
    assert heads.kind == kind
    assert heads.num_bytes > 0


def without(weights: HeadWeights, name: str) -> HeadWeights:
    """Return weights that lack a tensor."""
    return replace(weights, tensors={k: v for k, v in weights.tensors.items() if k != name})


def test_missing_medusa_tensors_are_listed(backbone: Backbone) -> None:
    weights = without(random_medusa(backbone.config), "lm_heads.1.weight")
    with pytest.raises(HeadError, match=r"lacks 1 of 15 tensors: lm_heads\.1\.weight"):
        build_medusa(weights, backbone)


def test_gap_in_the_numbering_is_refused(backbone: Backbone) -> None:
    weights = random_meta(backbone.config)
    tensors = {k: v for k, v in weights.tensors.items() if not k.startswith("extra_heads.1.")}
    with pytest.raises(HeadError, match=r"numbers its heads \[0, 2\]"):
        build_meta(replace(weights, tensors=tensors), backbone)


def test_absurd_head_number_is_refused(backbone: Backbone) -> None:
    weights = random_medusa(backbone.config)
    far = store_array("lm_heads.9999.weight", np.zeros((96, 64)))
    with pytest.raises(HeadError, match="numbers its heads"):
        build_medusa(replace(weights, tensors={**weights.tensors, far.name: far}), backbone)


def test_meta_layer_with_unknown_parts_is_refused(backbone: Backbone) -> None:
    weights = random_meta(backbone.config)
    name = "extra_heads.0.pre_feedforward_layernorm.weight"
    extra = store_array(name, np.zeros(64))
    with pytest.raises(HeadError, match="pre_feedforward_layernorm"):
        build_meta(replace(weights, tensors={**weights.tensors, name: extra}), backbone)


def test_token_map_outside_the_vocabulary_is_refused(backbone: Backbone) -> None:
    weights = random_medusa(backbone.config, draft_vocab_size=40)
    assert weights.vocabulary is not None
    with pytest.raises(HeadError, match=r"ids \d+…1\d\d; the backbone has 0…95"):
        build_medusa(replace(weights, vocabulary=weights.vocabulary + 40), backbone)


def test_medusa_heads_of_other_width_are_refused(backbone: Backbone) -> None:
    weights = random_medusa(replace(backbone.config, hidden_size=32))
    with pytest.raises(HeadError, match=r"is \[96, 32\], should be \[96, 64\]"):
        build_medusa(weights, backbone)
