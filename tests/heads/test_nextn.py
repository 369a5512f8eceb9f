"""The nextn head against a plain recomputation, for every switch, and what it must refuse."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headlong.arrays import FloatArray
from headlong.errors import HeadError
from headlong.heads.head import RecursiveHead
from headlong.heads.head_weights import HeadWeights, store_array
from headlong.heads.nextn import NextnHead, build_nextn
from headlong.heads.nextn_families import NextnSwitches
from headlong.models.transformer import Backbone
from headlong.ops.op_set import Array
from model_files import ARCHITECTURES
from passages import Passage, read_passage
from plain_maths import Float64Array, PlainLayer, rms
from random_heads import arrays_of, random_nextn

ALL_SWITCHES = [
    NextnSwitches(),
    NextnSwitches(concat="hidden_first"),
    NextnSwitches(trunk="raw"),
    NextnSwitches(carried="raw"),
    NextnSwitches(norm="one_plus"),
    NextnSwitches(first_embedding="zeroed"),
    NextnSwitches("hidden_first", "raw", "raw", "one_plus", "zeroed"),
]


def plain_states(
    weights: HeadWeights, backbone: Backbone, states: Float64Array, next_ids: list[int]
) -> Float64Array:
    """Compute the layer's results before the final norm over a whole sequence of states."""
    switches, eps = weights.config["nextn"], backbone.config.norm_eps
    tensors = plain_tensors(weights)
    embedded = backbone.embed(np.array(next_ids)).astype(np.float64)
    if switches["first_embedding"] == "zeroed":
        embedded[0] = 0
    halves = [
        rms(embedded, tensors["pre_fc_norm_embedding.weight"], eps),
        rms(states, tensors["pre_fc_norm_hidden.weight"], eps),
    ]
    if switches["concat"] == "hidden_first":
        halves = halves[::-1]
    x = np.concatenate(halves, axis=1) @ tensors["fc.weight"].T.astype(np.float64)
    return PlainLayer(tensors, "layers.0.", backbone.config, backbone.config.rope_theta).run(x)


def plain_tensors(weights: HeadWeights) -> dict[str, FloatArray]:
    """Return a head's tensors, norms as they multiply."""
    offset = 1 if weights.config["nextn"]["norm"] == "one_plus" else 0
    return {
        name: values + np.float32(offset) if "norm" in name else values
        for name, values in arrays_of(weights).items()
    }


def observe(head: NextnHead, passage: Passage) -> Array:
    """Run a fresh head over a passage in one go."""
    return head.step(
        head.enter(head.features(passage.hidden)), [passage.next_ids], [head.make_cache()]
    )


def check_against_plain_maths(weights: HeadWeights, backbone: Backbone) -> None:
    """Compare observed states, logits and one recursion with the plain recomputation."""
    head = build_nextn(weights, backbone)
    passage = read_passage(backbone)
    switches, tensors = head.switches, plain_tensors(weights)
    trunk = passage.hidden.raw if switches.trunk == "raw" else passage.hidden.normed
    read, ids = trunk.astype(np.float64), passage.next_ids.tolist()

    cache = head.make_cache()
    states = head.step(head.enter(head.features(passage.hidden)), [passage.next_ids], [cache])
    cache.commit(len(ids))
    for depth in range(3):
        raw = plain_states(weights, backbone, read, ids)
        normed = rms(raw, tensors["norm.weight"], backbone.config.norm_eps)
        expected = raw if switches.carried == "raw" else normed
        rows = slice(None) if depth == 0 else slice(-1, None)
        np.testing.assert_allclose(states, expected[rows], rtol=1e-3, atol=2e-4)
        lm_head = tensors["lm_head.weight"]
        np.testing.assert_allclose(
            head.logits(states), normed[rows] @ lm_head.T, rtol=1e-3, atol=2e-3
        )
        read, ids = np.concatenate([read, states[-1:]]), [*ids, 11 * depth]
        states = head.step(states[-1:], [np.array([11 * depth])], [cache])


@pytest.mark.parametrize("switches", ALL_SWITCHES)
def test_following_equals_the_last_step_bytewise(
    backbone: Backbone, switches: NextnSwitches
) -> None:
    head = build_nextn(random_nextn(backbone.config, switches=switches), backbone)
    passage = read_passage(backbone)
    followed = head.follow(head.features(passage.hidden), [passage.next_ids], [head.make_cache()])
    assert followed.tobytes() == observe(head, passage)[-1:].tobytes()


@pytest.mark.parametrize("switches", ALL_SWITCHES)
def test_every_switch_equals_plain_maths(backbone: Backbone, switches: NextnSwitches) -> None:
    weights = random_nextn(backbone.config, switches=switches, draft_vocab_size=40)
    check_against_plain_maths(weights, backbone)


@pytest.mark.parametrize("switches", ALL_SWITCHES[1:])
def test_every_switch_matters(backbone: Backbone, switches: NextnSwitches) -> None:
    weights = random_nextn(backbone.config)
    config = {**weights.config, "nextn": {**weights.config["nextn"], **as_dict(switches)}}
    passage = read_passage(backbone)
    plain = build_nextn(weights, backbone)
    other = build_nextn(replace(weights, config=config), backbone)
    assert not np.allclose(observe(plain, passage), observe(other, passage))


def as_dict(switches: NextnSwitches) -> dict[str, str]:
    """Return switches as config.json spells them, written out by hand."""
    return {
        "concat": switches.concat,
        "trunk": switches.trunk,
        "carried": switches.carried,
        "norm": switches.norm,
        "first_embedding": switches.first_embedding,
    }


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("layer", ["llama", "qwen2", "qwen3"])
def test_every_layer_kind_runs_on_every_backbone(
    tiny_backbone: Callable[[str], Backbone], architecture: str, layer: str
) -> None:
    backbone = tiny_backbone(architecture)
    weights = random_nextn(backbone.config, layer=layer, draft_vocab_size=40)
    check_against_plain_maths(weights, backbone)


def test_lm_head_and_embedding_are_shared_unless_given(backbone: Backbone) -> None:
    weights = random_nextn(backbone.config)
    shared = build_nextn(weights, backbone)
    passage = read_passage(backbone)
    states = observe(shared, passage)
    assert shared.embedding is backbone.embedding
    assert shared.logits(states).tobytes() == backbone.logits(states).tobytes()

    rng = np.random.default_rng(3)
    own = {
        name: store_array(name, rng.standard_normal((96, 64)))
        for name in ("lm_head.weight", "embed_tokens.weight")
    }
    head = build_nextn(replace(weights, tensors={**weights.tensors, **own}), backbone)
    assert not np.allclose(observe(head, passage), states)
    assert not np.allclose(head.logits(states), shared.logits(states))
    assert head.num_bytes == shared.num_bytes + 2 * 96 * 64 * 4


def test_recursion_equals_one_pass_bytewise(backbone: Backbone) -> None:
    head = build_nextn(random_nextn(backbone.config), backbone)
    passage = read_passage(backbone)
    entered = head.enter(head.features(passage.hidden))
    whole, cache = observe(head, passage), head.make_cache()
    for row in range(len(entered)):
        alone = head.step(entered[row : row + 1], [passage.next_ids[row : row + 1]], [cache])
        assert alone.tobytes() == whole[row : row + 1].tobytes()


@pytest.mark.parametrize("chunk", [1, 3, 8])
def test_chunked_observe_equals_one_shot(backbone: Backbone, chunk: int) -> None:
    switches = NextnSwitches(first_embedding="zeroed")  # only the very first row, not each chunk's
    head = build_nextn(random_nextn(backbone.config, switches=switches), backbone)
    passage = read_passage(backbone, num_rows=11)
    cache, parts = head.make_cache(), []
    for first in range(0, 11, chunk):
        ids = passage.next_ids[first : first + chunk]
        entered = head.enter(head.features(passage.hidden.rows(first, first + chunk)))
        parts.append(head.step(entered, [ids], [cache]))
        cache.commit(len(ids))
    assert np.concatenate(parts).tobytes() == observe(head, passage).tobytes()


def test_two_sequences_equal_each_alone(backbone: Backbone) -> None:
    switches = NextnSwitches(first_embedding="zeroed")
    head = build_nextn(random_nextn(backbone.config, switches=switches), backbone)
    one, two = read_passage(backbone, num_rows=5, seed=1), read_passage(backbone, seed=2)
    entered = np.concatenate([head.enter(head.features(each.hidden)) for each in (one, two)])
    caches = [head.make_cache(), head.make_cache()]
    together = head.step(entered, [one.next_ids, two.next_ids], caches)
    alone = np.concatenate([observe(head, one), observe(head, two)])
    assert together.tobytes() == alone.tobytes()


def test_head_is_recursive_without_taps(backbone: Backbone) -> None:
    head = build_nextn(random_nextn(backbone.config), backbone)
    assert isinstance(head, RecursiveHead)
    assert head.tap_layers == ()
    assert head.vocabulary is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 32}, "hidden states of 32 numbers; the backbone's have 64"),
        ({"vocab_size": 97}, "97 tokens; the backbone has 96"),
        ({"nextn": {"concat": "embedding_first"}}, "nextn switches"),
        ({"nextn": None}, "nextn switches"),
    ],
)
def test_config_that_does_not_fit_is_refused(
    backbone: Backbone, changes: dict[str, Any], message: str
) -> None:
    weights = random_nextn(backbone.config)
    with pytest.raises(HeadError, match=message):
        build_nextn(replace(weights, config={**weights.config, **changes}), backbone)


def test_unknown_switch_value_is_refused(backbone: Backbone) -> None:
    weights = random_nextn(backbone.config)
    switches = {**weights.config["nextn"], "concat": "both"}
    with pytest.raises(HeadError, match=r"concat is 'both'"):
        build_nextn(replace(weights, config={**weights.config, "nextn": switches}), backbone)


def test_pruned_vocabulary_needs_its_own_lm_head(backbone: Backbone) -> None:
    weights = random_nextn(backbone.config, draft_vocab_size=40)
    tensors = {name: t for name, t in weights.tensors.items() if name != "lm_head.weight"}
    with pytest.raises(HeadError, match=r"lacks 1 of 14 tensors: lm_head\.weight"):
        build_nextn(replace(weights, tensors=tensors), backbone)


def test_folder_without_switches_is_refused(backbone: Backbone) -> None:
    weights = random_nextn(backbone.config)
    with pytest.raises(HeadError, match="nextn switches None"):
        build_nextn(replace(weights, config={}), backbone)
