"""Heads in training against heads in drafting: same weights, same logits."""

import numpy as np
import pytest
import torch

from headlong.arrays import FloatArray, IntArray
from headlong.heads.head import ParallelHeads, RecursiveHead
from headlong.heads.head_files import build_head
from headlong.models.registry import load_backbone
from headlong.models.transformer import Backbone
from headlong.ops.numpy.ops import NumpyOps
from headlong.train.export import head_weights
from headlong.train.recipe import HeadRecipe, HeadShape
from headlong.train.teacher import Teacher
from headlong.train.torch_head import TorchHead, make_head
from headlong.weights.checkpoint import Checkpoint
from train_parts import assert_equal_from_some_rows

NUM_DEPTHS = 4
VOCABULARY = np.arange(3, 203, 2)


@pytest.fixture(scope="module")
def backbone(any_checkpoint: Checkpoint) -> Backbone:
    """The same model as the engine runs it."""
    return load_backbone(any_checkpoint, NumpyOps()).backbone


def perturbed_head(
    kind: HeadShape, teacher: Teacher, vocabulary: IntArray = VOCABULARY
) -> TorchHead:
    """A head with perturbed weights, so that none has a special value."""
    torch.manual_seed(3)
    head = make_head(HeadRecipe(kind=kind), teacher, vocabulary, NUM_DEPTHS)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return head


@pytest.mark.parametrize("kind", ["eagle3", "nextn"])
def test_a_narrower_mlp_keeps_the_largest_inner_units(
    any_teacher: Teacher, kind: HeadShape
) -> None:
    recipe = HeadRecipe(kind=kind, mlp_share=1 / 3)
    head = make_head(recipe, any_teacher, VOCABULARY, NUM_DEPTHS)
    layer = head.midlayer if kind == "eagle3" else head.layers[0]
    mlp = any_teacher.backbone.layers[-1].mlp
    up, down = mlp.up.weight.values, mlp.down.weight.values
    sizes = up.norm(dim=1) * down.norm(dim=0)
    kept = sizes.argsort(descending=True)[:32].sort().values  # a whole group
    assert torch.equal(layer.mlp.up_proj.weight, up[kept])
    assert torch.equal(layer.mlp.down_proj.weight, down[:, kept])
    assert head.export_config()["intermediate_size"] == 32 < len(sizes)


def random_ids(batch: int, length: int) -> IntArray:
    """Some token ids."""
    return np.random.default_rng(5).integers(0, 266, (batch, length))


def test_hidden_states_equal_the_engines(any_teacher: Teacher, backbone: Backbone) -> None:
    ids = random_ids(2, 23)
    hidden = any_teacher.forward(torch.from_numpy(ids), (2, 3, 4))
    expected = backbone.forward(list(ids), [backbone.make_cache() for _ in ids], (2, 3, 4))
    assert hidden.taps is not None
    assert expected.taps is not None
    np.testing.assert_allclose(hidden.normed.numpy(), expected.normed, atol=1e-4)
    np.testing.assert_allclose(hidden.raw.numpy(), expected.raw, atol=1e-4)
    np.testing.assert_allclose(hidden.taps.numpy(), expected.taps, atol=1e-4)


def draft_logits(
    head: RecursiveHead, backbone: Backbone, tokens: IntArray, start: int
) -> FloatArray:
    """Draft from row `start` the way the engine does, fed with the true tokens: (K, V_draft)."""
    rows = backbone.forward([tokens], [backbone.make_cache()], head.tap_layers)
    cache, seen = head.make_cache(), tokens[1 : start + 2]
    carried = head.step(head.enter(head.features(rows))[: start + 1], [seen], [cache])[-1:]
    cache.commit(len(seen))
    logits = [head.logits(carried)[0]]
    for depth in range(1, NUM_DEPTHS):
        carried = head.step(carried, [tokens[start + 1 + depth :][:1]], [cache])
        logits.append(head.logits(carried)[0])
    return np.stack(logits)


@pytest.mark.parametrize("kind", ["eagle3", "nextn"])
def test_chains_equal_drafting_step_by_step(
    any_teacher: Teacher, backbone: Backbone, kind: HeadShape
) -> None:
    """A wrong mask or position shows only from depth 2 on."""
    head = perturbed_head(kind, any_teacher)
    drafting = build_head(
        head_weights(head, HeadRecipe(kind=kind), VOCABULARY, "float32"), backbone
    )
    assert isinstance(drafting, RecursiveHead)
    ids = random_ids(2, 17)
    with torch.no_grad():
        hidden = any_teacher.forward(torch.from_numpy(ids), head.tap_layers)
        states = head.rollout(hidden, torch.from_numpy(ids))
        logits = [
            head.logits(next(states), depth + 1).view(2, 17, -1).numpy()
            for depth in range(NUM_DEPTHS)
        ]

    for line, tokens in enumerate(ids):
        for start in range(len(tokens) - NUM_DEPTHS):
            found = np.stack([logits[depth][line, start] for depth in range(NUM_DEPTHS)])
            expected = draft_logits(drafting, backbone, tokens, start)
            np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["eagle3", "nextn", "medusa"])
def test_chains_of_some_rows_equal_those_of_all(any_teacher: Teacher, kind: HeadShape) -> None:
    """Prompt rows start no chains, but all chains attend to them."""
    head = perturbed_head(kind, any_teacher)
    assert_equal_from_some_rows(head, any_teacher, random_ids(3, 17))


def test_a_head_fits_a_backbone_of_any_kind(
    every_teacher: Teacher, every_checkpoint: Checkpoint
) -> None:
    """Tests sizes and rotary frequencies if the backbone has another kind of attention."""
    few = np.arange(3, 60, 2)
    head = perturbed_head("nextn", every_teacher, few)
    backbone = load_backbone(every_checkpoint, NumpyOps()).backbone
    weights = head_weights(head, HeadRecipe(kind="nextn"), few, "float32")
    drafting = build_head(weights, backbone)
    assert isinstance(drafting, RecursiveHead)
    tokens = np.random.default_rng(5).integers(0, 60, 11)
    with torch.no_grad():
        ids = torch.from_numpy(tokens)[None]
        states = head.rollout(every_teacher.forward(ids), ids)
        logits = [head.logits(next(states), depth + 1).numpy() for depth in range(NUM_DEPTHS)]
    for start in (0, 4):
        expected = draft_logits(drafting, backbone, tokens, start)
        found = np.stack([at_depth[start] for at_depth in logits])
        assert np.abs(found - expected).max() <= 5e-4 * np.abs(expected).max()


def test_parallel_heads_equal_the_engines(any_teacher: Teacher, backbone: Backbone) -> None:
    head = perturbed_head("medusa", any_teacher)
    drafting = build_head(
        head_weights(head, HeadRecipe(kind="medusa"), VOCABULARY, "float32"), backbone
    )
    assert isinstance(drafting, ParallelHeads)
    ids = random_ids(1, 9)
    with torch.no_grad():
        hidden = any_teacher.forward(torch.from_numpy(ids))
        states = list(head.rollout(hidden, torch.from_numpy(ids)))
        logits = [head.logits(state, depth).numpy() for depth, state in enumerate(states, 1)]
    rows = backbone.forward(list(ids), [backbone.make_cache()])
    expected = drafting.states(drafting.features(rows), [drafting.make_cache()], [9])
    assert len(logits) == drafting.num_depths == NUM_DEPTHS
    for depth in range(1, NUM_DEPTHS + 1):
        np.testing.assert_allclose(
            logits[depth - 1], drafting.logits(expected[depth - 1], depth), atol=2e-4, rtol=1e-4
        )
