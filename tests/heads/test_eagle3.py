"""The EAGLE-3 head against a plain recomputation, and everything it must refuse."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headlong.errors import HeadError
from headlong.heads.eagle3 import Eagle3Head, build_eagle3
from headlong.heads.head import ParallelHeads, RecursiveHead
from headlong.heads.head_weights import HeadWeights, store_array
from headlong.models.transformer import Backbone
from headlong.ops.op_set import Array
from model_files import ARCHITECTURES
from passages import Passage, read_passage
from plain_maths import Float64Array, PlainLayer, rms
from random_heads import arrays_of, random_eagle3


def plain_states(
    weights: HeadWeights, backbone: Backbone, states: Float64Array, next_ids: list[int]
) -> Float64Array:
    """Run the head's layer over a whole sequence of states."""
    layer = PlainLayer(
        arrays_of(weights),
        "midlayer.",
        backbone.config,
        backbone.config.rope_theta,
        adds_to_normed=bool(weights.config["norm_before_residual"]),
        window=weights.config.get("sliding_window"),
    )
    embedded = backbone.embed(np.array(next_ids)).astype(np.float64)
    return layer.run(states, beside=embedded)


def plain_enter(weights: HeadWeights, passage: Passage, eps: float) -> Float64Array:
    """Fuse the taps."""
    assert passage.hidden.taps is not None
    tensors, taps = arrays_of(weights), passage.hidden.taps.astype(np.float64)
    if "input_norm.weight" in tensors:
        taps = rms(taps, tensors["input_norm.weight"], eps)
    if "fc_norm.0.weight" in tensors:
        single = np.split(taps, 3, axis=1)
        normed = [rms(x, tensors[f"fc_norm.{i}.weight"], eps) for i, x in enumerate(single)]
        taps = np.concatenate(normed, axis=1)
    return np.asarray(taps @ tensors["fc.weight"].T)


def observe(head: Eagle3Head, passage: Passage) -> Array:
    """Run a fresh head over a passage in one go."""
    return head.step(
        head.enter(head.features(passage.hidden)), [passage.next_ids], [head.make_cache()]
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("norm_before_fc", [False, True])
def test_states_and_logits_equal_plain_maths(
    tiny_backbone: Callable[[str], Backbone], architecture: str, norm_before_fc: bool
) -> None:
    backbone = tiny_backbone(architecture)
    weights = random_eagle3(backbone.config, draft_vocab_size=40, norm_before_fc=norm_before_fc)
    head = build_eagle3(weights, backbone)
    passage = read_passage(backbone, head.tap_layers)
    eps, tensors = backbone.config.norm_eps, arrays_of(weights)

    entered = plain_enter(weights, passage, eps)
    expected = plain_states(weights, backbone, entered, passage.next_ids.tolist())
    states = observe(head, passage)
    np.testing.assert_allclose(states, expected, rtol=1e-3, atol=1e-4)
    expected_logits = rms(expected, tensors["norm.weight"], eps) @ tensors["lm_head.weight"].T
    np.testing.assert_allclose(head.logits(states), expected_logits, rtol=1e-3, atol=1e-3)


def test_head_with_a_window_looks_back_as_far(backbone: Backbone) -> None:
    weights = random_eagle3(backbone.config)
    window = {"layer_types": ["sliding_attention"], "sliding_window": 4}
    near = replace(weights, config={**weights.config, **window})
    head = build_eagle3(near, backbone)
    passage = read_passage(backbone, head.tap_layers, num_rows=9)
    states = observe(head, passage)
    entered = plain_enter(weights, passage, backbone.config.norm_eps)
    expected = plain_states(near, backbone, entered, passage.next_ids.tolist())
    np.testing.assert_allclose(states, expected, rtol=1e-3, atol=1e-4)
    full = {"layer_types": ["full_attention"], "sliding_window": 4}
    far = build_eagle3(replace(weights, config={**weights.config, **full}), backbone)
    assert far.layer.attention.window is None
    assert not np.allclose(observe(far, passage), states)


def test_every_tapped_state_may_have_a_norm_of_its_own(backbone: Backbone) -> None:
    weights, rng = random_eagle3(backbone.config), np.random.default_rng(3)
    norms = {f"fc_norm.{i}.weight": 1 + 0.3 * rng.standard_normal(64) for i in range(3)}
    stored = {name: store_array(name, values) for name, values in norms.items()}
    normed = replace(weights, tensors={**weights.tensors, **stored})
    head = build_eagle3(normed, backbone)
    passage = read_passage(backbone, head.tap_layers)
    expected = plain_enter(normed, passage, backbone.config.norm_eps)
    found = head.enter(head.features(passage.hidden))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    assert not np.allclose(found, plain_enter(weights, passage, backbone.config.norm_eps))


def test_norm_that_is_switched_off_is_left_alone(backbone: Backbone) -> None:
    weights = random_eagle3(backbone.config, norm_before_fc=True)
    off = replace(weights, config={**weights.config, "norm_before_fc": False})
    silent = {k: v for k, v in weights.config.items() if k != "norm_before_fc"}
    assert build_eagle3(off, backbone).input_norm is None
    assert build_eagle3(off, backbone).report.unused_tensors == ("input_norm.weight",)
    assert build_eagle3(replace(weights, config=silent), backbone).input_norm is not None
    nested = silent | {"eagle_config": {"norm_before_fc": True}}
    assert build_eagle3(replace(weights, config=nested), backbone).input_norm is not None


@pytest.mark.parametrize("norms", [(), ("norm_before_residual",), ("norm_output",)])
def test_recursion_equals_plain_maths_over_carried_states(
    backbone: Backbone, norms: tuple[str, ...]
) -> None:
    weights = random_eagle3(backbone.config)
    weights = replace(weights, config={**weights.config, **dict.fromkeys(norms, True)})
    head, eps = build_eagle3(weights, backbone), backbone.config.norm_eps
    final = arrays_of(weights)["norm.weight"]
    passage = read_passage(backbone, head.tap_layers)
    cache = head.make_cache()
    entered = head.enter(head.features(passage.hidden))
    carried = head.step(entered, [passage.next_ids], [cache])[-1:]
    cache.commit(len(passage.next_ids))

    read, ids = entered.astype(np.float64), passage.next_ids.tolist()
    for token_id in (5, 17, 90):
        read = np.concatenate([read, carried])
        ids.append(token_id)
        carried = head.step(carried, [np.array([token_id])], [cache])
        expected = plain_states(weights, backbone, read, ids)[-1:]
        expected = rms(expected, final, eps) if "norm_output" in norms else expected
        np.testing.assert_allclose(carried, expected, rtol=1e-3, atol=1e-4)


def test_recursion_equals_one_pass_bytewise(backbone: Backbone) -> None:
    head = build_eagle3(random_eagle3(backbone.config), backbone)
    passage = read_passage(backbone, head.tap_layers)
    entered, whole = head.enter(head.features(passage.hidden)), observe(head, passage)
    cache = head.make_cache()
    for row in range(len(entered)):
        alone = head.step(entered[row : row + 1], [passage.next_ids[row : row + 1]], [cache])
        assert alone.tobytes() == whole[row : row + 1].tobytes()


@pytest.mark.parametrize("chunk", [1, 2, 4, 8])
def test_chunked_observe_equals_one_shot(backbone: Backbone, chunk: int) -> None:
    head = build_eagle3(random_eagle3(backbone.config), backbone)
    passage = read_passage(backbone, head.tap_layers, num_rows=11)
    cache, parts = head.make_cache(), []
    for first in range(0, 11, chunk):
        rows = passage.hidden.rows(first, first + chunk)
        ids = passage.next_ids[first : first + chunk]
        parts.append(head.step(head.enter(head.features(rows)), [ids], [cache]))
        cache.commit(len(ids))
    assert np.concatenate(parts).tobytes() == observe(head, passage).tobytes()


def test_following_equals_the_last_steps_bytewise(backbone: Backbone) -> None:
    head = build_eagle3(random_eagle3(backbone.config), backbone)
    passages = [read_passage(backbone, head.tap_layers, num_rows=n, seed=n) for n in (5, 1, 8)]
    caches = [head.make_cache() for _ in passages]
    features = np.concatenate([head.features(passage.hidden) for passage in passages])
    followed = head.follow(features, [passage.next_ids for passage in passages], caches)
    stepped = np.concatenate([observe(head, passage)[-1:] for passage in passages])
    assert followed.tobytes() == stepped.tobytes()
    assert [cache.num_pending for cache in caches] == [5, 1, 8]


def test_two_sequences_equal_each_alone(backbone: Backbone) -> None:
    head = build_eagle3(random_eagle3(backbone.config), backbone)
    one = read_passage(backbone, head.tap_layers, num_rows=5, seed=1)
    two = read_passage(backbone, head.tap_layers, num_rows=8, seed=2)
    entered = np.concatenate([head.enter(head.features(each.hidden)) for each in (one, two)])
    together = head.step(
        entered, [one.next_ids, two.next_ids], [head.make_cache(), head.make_cache()]
    )
    alone = np.concatenate([observe(head, one), observe(head, two)])
    assert together.tobytes() == alone.tobytes()
    assert (
        head.logits(together).tobytes()
        == np.concatenate([head.logits(alone[:5]), head.logits(alone[5:])]).tobytes()
    )


def test_refused_drafts_leave_no_trace(backbone: Backbone) -> None:
    head = build_eagle3(random_eagle3(backbone.config), backbone)
    passage = read_passage(backbone, head.tap_layers, num_rows=6)
    entered, cache = head.enter(head.features(passage.hidden)), head.make_cache()
    head.step(entered[:4], [passage.next_ids[:4]], [cache])
    cache.commit(4)
    head.step(entered[:1], [np.array([7])], [cache])  # a draft that will not stand
    cache.rollback()
    rest = head.step(entered[4:], [passage.next_ids[4:]], [cache])
    assert rest.tobytes() == observe(head, passage)[4:].tobytes()


def test_head_is_recursive_and_counts_its_bytes(backbone: Backbone) -> None:
    weights = random_eagle3(backbone.config, draft_vocab_size=40, float_type="float16")
    head = build_eagle3(weights, backbone)
    shapes: list[type] = [RecursiveHead, ParallelHeads]
    assert [isinstance(head, shape) for shape in shapes] == [True, False]
    assert head.num_bytes == sum(tensor.num_bytes for tensor in weights.tensors.values())
    assert head.vocabulary is not None
    assert head.logits(np.ones((2, backbone.config.hidden_size), np.float32)).shape == (2, 40)


def test_head_of_other_width_brings_its_own_embedding(backbone: Backbone) -> None:
    narrow = replace(backbone.config, hidden_size=32, intermediate_size=48)
    weights = random_eagle3(narrow)
    fc = np.random.default_rng(0).standard_normal((32, 3 * backbone.config.hidden_size)) * 0.1
    embedding = np.random.default_rng(1).standard_normal((backbone.config.vocab_size, 32))
    tensors = {**weights.tensors, "fc.weight": store_array("fc.weight", fc)}
    with pytest.raises(HeadError, match=r"lacks 1 of .* tensors: embed_tokens\.weight"):
        build_eagle3(replace(weights, tensors=tensors), backbone)
    tensors["embed_tokens.weight"] = store_array("embed_tokens.weight", embedding)
    head = build_eagle3(replace(weights, tensors=tensors), backbone)
    passage = read_passage(backbone, head.tap_layers, num_rows=3)
    assert observe(head, passage).shape == (3, 32)


def test_rope_base_is_the_heads_own(backbone: Backbone) -> None:
    weights = random_eagle3(backbone.config)
    other = replace(weights, config={**weights.config, "rope_theta": 500.0})
    head = build_eagle3(weights, backbone)
    passage = read_passage(backbone, head.tap_layers)
    turned = observe(build_eagle3(other, backbone), passage)
    assert not np.allclose(turned[1:], observe(head, passage)[1:])


def test_speculators_heads_add_to_the_normed_state_unless_they_say_otherwise(
    backbone: Backbone,
) -> None:
    weights = random_eagle3(backbone.config)
    config: dict[str, Any] = {**weights.config, "speculators_model_type": "eagle3"}
    for said, adds_to_normed in ((False, False), (None, True), (True, True)):
        own = replace(weights, config=config | {"norm_before_residual": said})
        assert build_eagle3(own, backbone).layer.attention.adds_to_normed is adds_to_normed


def test_embedding_and_lm_head_are_the_heads_own_if_it_has_them(backbone: Backbone) -> None:
    weights = random_eagle3(backbone.config)
    tensors = {n: tensor for n, tensor in weights.tensors.items() if n != "lm_head.weight"}
    sharing = build_eagle3(replace(weights, tensors=tensors), backbone)
    assert (sharing.embedding, sharing.lm_head) == (backbone.embedding, backbone.lm_head)
    own = store_array("embed_tokens.weight", np.zeros((96, 64)))
    head = build_eagle3(
        replace(weights, tensors={**weights.tensors, "embed_tokens.weight": own}), backbone
    )
    assert not np.asarray(head.ops.embed(head.embedding, np.array([5]), 1.0)).any()
    assert head.lm_head is not backbone.lm_head
    assert head.report.unused_tensors == ()


def test_draft_vocabulary_without_an_lm_head_is_refused(backbone: Backbone) -> None:
    weights = random_eagle3(backbone.config, draft_vocab_size=40)
    tensors = {n: tensor for n, tensor in weights.tensors.items() if n != "lm_head.weight"}
    with pytest.raises(HeadError, match=r"lacks 1 of .* lm_head\.weight"):
        build_eagle3(replace(weights, tensors=tensors), backbone)


def test_unknown_part_of_the_fusion_is_refused(backbone: Backbone) -> None:
    weights = random_eagle3(backbone.config)
    bias = store_array("fc.bias", np.ones(64))
    with pytest.raises(HeadError, match=r"no block here computes: fc\.bias"):
        build_eagle3(replace(weights, tensors={**weights.tensors, "fc.bias": bias}), backbone)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 2}, "has 2 layers"),
        ({"fc_norm": True}, r"lacks 3 of 3 tensors: fc_norm\.0\.weight"),
        ({"parallel_drafting": True}, "dialect: parallel drafting"),
        ({"eagle_config": {"parallel_draft_step": 4}}, "dialect: parallel drafting"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state = false"),
        ({"eagle_config": {"norm_before_fc": True}}, "lacks 1 of .* input_norm"),
        ({"hidden_act": "relu"}, "'relu'"),
        ({"vocab_size": 97}, "97 tokens; the backbone has 96"),
        ({"draft_vocab_size": 50}, "announces 50 draft tokens, but maps 40"),
        ({"hidden_size": 48}, "fc.weight"),
        ({"num_attention_heads": 3}, "share 2 key/value heads"),
        ({"head_dim": 10**12}, "of size 1000000000000"),
        ({"rope_theta": -1.0}, "rope_theta -1.0"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps"),
    ],
)
def test_config_that_does_not_fit_is_refused(
    backbone: Backbone, changes: dict[str, Any], message: str
) -> None:
    weights = random_eagle3(backbone.config, draft_vocab_size=40)
    config = {k: v for k, v in {**weights.config, **changes}.items() if v is not None}
    with pytest.raises(HeadError, match=message) as refusal:
        build_eagle3(replace(weights, config=config), backbone)
    assert refusal.value.remedy


def test_wrong_number_of_taps_is_refused(backbone: Backbone) -> None:
    weights = random_eagle3(backbone.config)
    fc = store_array("fc.weight", np.zeros((64, 4 * 64)))
    with pytest.raises(HeadError, match=r"fc\.weight \[64, 256\]; 3 taps"):
        build_eagle3(replace(weights, tensors={**weights.tensors, "fc.weight": fc}), backbone)


def test_shallow_backbone_is_refused(backbone: Backbone) -> None:
    config = replace(backbone.config, num_layers=3)
    shallow = replace(backbone, config=config, layers=backbone.layers[:3])
    weights = random_eagle3(config)
    assert build_eagle3(weights, shallow).tap_layers == (0, 1, 2)
    head_config = dict(weights.config)
    del head_config["eagle_aux_hidden_state_layer_ids"]
    with pytest.raises(HeadError, match=r"layers \[2, 1, 0\]; the backbone has 3"):
        build_eagle3(replace(weights, config=head_config), shallow)


def test_second_layer_in_the_file_is_refused(backbone: Backbone) -> None:
    weights = random_eagle3(backbone.config)
    extra = store_array("layers.1.mlp.up_proj.weight", np.zeros((96, 64)))
    with pytest.raises(HeadError, match=r"layers\.1\.mlp\.up_proj"):
        build_eagle3(replace(weights, tensors={**weights.tensors, extra.name: extra}), backbone)
