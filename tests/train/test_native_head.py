"""A model's own MTP layer computes the same in training and in drafting, also after export."""

from pathlib import Path

import numpy as np
import pytest
import torch

from golden_models import CONVERTED, GOLDEN, WITH_MTP
from headlong.arrays import FloatArray, IntArray
from headlong.errors import HeadError, RequestError
from headlong.heads.head_files import build_head, read_head_weights
from headlong.heads.head_weights import HeadWeights
from headlong.heads.native_nextn import prune_vocabulary
from headlong.heads.nextn import NextnHead
from headlong.models.registry import load_backbone
from headlong.models.transformer import Backbone
from headlong.ops.blocks import Layer
from headlong.ops.numpy.ops import NumpyOps
from headlong.train.export import export_head, head_weights
from headlong.train.initial_weights import read_initial_weights
from headlong.train.native_head import TorchNative, check_layer
from headlong.train.recipe import HeadRecipe, Recipe
from headlong.train.teacher import load_teacher
from headlong.weights.checkpoint import Checkpoint, open_checkpoint
from mimo_files import write_mimo
from native_heads import write_folder_with
from native_parts import Parts
from random_heads import arrays_of, random_meta
from train_parts import assert_equal_from_some_rows

FILES = [(name, "") for name in WITH_MTP]
FILES += [(name, "converted.gguf") for name in CONVERTED if name in WITH_MTP]
FILES += [("mimo", "")]
NUM_DEPTHS = 4
VOCABULARY = np.arange(3, 60, 2)
FROZEN = ("exp_probs_b.bias", "attn_sinks.weight", "embed_tokens.weight", "head_head.weight")


def open_model(name: str, file: str, folder: Path) -> Checkpoint:
    """Open a tiny model with an MTP layer of its family."""
    return open_checkpoint(write_mimo(folder) if name == "mimo" else GOLDEN / name / file)


def perturbed_head(checkpoint: Checkpoint) -> TorchNative:
    """The layer in training, with other weights than those of the file."""
    teacher = load_teacher(checkpoint, torch.device("cpu"), compile=False)
    start = read_initial_weights(checkpoint, Recipe(), None, from_native=True)
    assert start is not None
    head = TorchNative(teacher, VOCABULARY, start.weights)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return head


def draft_logits(head: NextnHead, tokens: IntArray, start: int) -> FloatArray:
    """Draft from row `start` as the engine does, fed with the true tokens: (K, V_draft)."""
    backbone = head.backbone
    rows = backbone.forward([tokens], [backbone.make_cache()])
    cache, seen = head.make_cache(), tokens[1 : start + 2]
    state = head.step(head.enter(head.features(rows))[: start + 1], [seen], [cache])[-1:]
    cache.commit(len(seen))
    logits = [head.logits(state)[0]]
    for depth in range(1, NUM_DEPTHS):
        state = head.step(state, [tokens[start + 1 + depth : start + 2 + depth]], [cache])
        logits.append(head.logits(state)[0])
    return np.stack(logits)


def drafting(weights: HeadWeights, checkpoint: Checkpoint, backbone: Backbone) -> NextnHead:
    """The head as loaded for drafting, with its draft vocabulary."""
    head = build_head(weights, backbone)
    assert isinstance(head, NextnHead)
    fewer = prune_vocabulary(head, weights, checkpoint, "auto", ())
    assert fewer.vocabulary is not None
    assert fewer.vocabulary.tolist() == VOCABULARY.tolist()
    return fewer


@pytest.mark.parametrize(("name", "file"), FILES)
def test_chains_equal_drafting_with_the_exported_folder(
    name: str, file: str, tmp_path: Path
) -> None:
    """Tests every family's variants, positions and masks, and the export."""
    checkpoint = open_model(name, file, tmp_path / "model")
    head = perturbed_head(checkpoint)
    export_head(
        tmp_path / "head", head_weights(head, HeadRecipe(kind="nextn"), VOCABULARY, "float32")
    )
    backbone = load_backbone(checkpoint, NumpyOps()).backbone
    engine = drafting(read_head_weights(tmp_path / "head"), checkpoint, backbone)
    ids = np.random.default_rng(1).integers(0, 60, (2, 17))
    with torch.no_grad():
        tokens = torch.from_numpy(ids)
        states = head.rollout(head._teacher.forward(tokens), tokens)
        logits = [head.logits(next(states), d + 1).view(2, 17, -1) for d in range(NUM_DEPTHS)]
    for line, start in ((0, 0), (0, 11), (1, 3), (1, 12)):
        found = np.stack([at_depth[line, start].numpy() for at_depth in logits])
        expected = draft_logits(engine, ids[line], start)
        assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize(("name", "file"), FILES)
def test_chains_of_some_rows_equal_those_of_all(name: str, file: str, tmp_path: Path) -> None:
    head = perturbed_head(open_model(name, file, tmp_path))
    ids = np.random.default_rng(1).integers(0, 60, (3, 17))
    assert_equal_from_some_rows(head, head._teacher, ids)


@pytest.mark.parametrize(("name", "file"), FILES)
def test_all_tensors_with_a_gradient_are_trained(name: str, file: str, tmp_path: Path) -> None:
    head = perturbed_head(open_model(name, file, tmp_path))
    assert all(tensor.endswith(FROZEN) for tensor in head.frozen), head.frozen
    ids = torch.from_numpy(np.random.default_rng(1).integers(0, 60, (8, 24)))
    states = head.rollout(head._teacher.forward(ids), ids)
    total = sum(head.logits(next(states), d + 1).square().mean() for d in range(NUM_DEPTHS))
    assert isinstance(total, torch.Tensor)
    total.backward()
    idle = [name for name, one in head.named_parameters() if one.grad is None]
    # An expert that got no rows has no gradient.
    assert all("_exps" in name for name in idle), idle
    assert len(idle) < sum("_exps" in name for name, _ in head.named_parameters()) or not idle


def test_scaling_the_logits_does_not_change_deeper_depths() -> None:
    """The norm is scaled, since the LM head is the model's."""
    head = perturbed_head(open_checkpoint(GOLDEN / "tiny-qwen3_5"))
    ids = torch.from_numpy(np.random.default_rng(1).integers(0, 60, (1, 12)))
    hidden = head._teacher.forward(ids)

    def all_logits() -> list[torch.Tensor]:
        states = head.rollout(hidden, ids)
        return [head.logits(next(states), depth + 1) for depth in range(3)]

    with torch.no_grad():
        before = all_logits()
        head.scale_logits(1.5)
        for plain, scaled in zip(before, all_logits(), strict=True):
            torch.testing.assert_close(scaled, 1.5 * plain, rtol=1e-3, atol=1e-4)


def test_a_layer_without_attention_is_refused() -> None:
    parts = Parts(NumpyOps(), "F32")
    with pytest.raises(HeadError, match=r"MTP layer of that\.gguf has GatedDeltaNet; only layers"):
        check_layer(Layer(parts.delta_net(), parts.mlp()), "that.gguf")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [({"packed": "q4"}, r"head\.packed = 'q4'"), ({"mlp_share": 2.0}, r"head\.mlp_share = 2\.0")],
)
def test_settings_for_new_heads_are_refused(changes: dict[str, object], problem: str) -> None:
    recipe = Recipe(head=HeadRecipe(**changes))  # type: ignore[arg-type]
    checkpoint = open_checkpoint(GOLDEN / "tiny-qwen3_5")
    with pytest.raises(RequestError, match=problem):
        read_initial_weights(checkpoint, recipe, None, from_native=True)


def test_models_without_a_layer_to_tune_are_refused(tmp_path: Path) -> None:
    plain = open_checkpoint(write_folder_with(tmp_path / "plain", "llama", {}))
    with pytest.raises(HeadError, match="has no MTP layer"):
        read_initial_weights(plain, Recipe(), None, from_native=True)
    config = load_backbone(plain, NumpyOps()).backbone.config
    meta = write_folder_with(tmp_path / "meta", "llama", dict(arrays_of(random_meta(config))))
    with pytest.raises(HeadError, match="has meta heads"):
        read_initial_weights(open_checkpoint(meta), Recipe(), None, from_native=True)
    with pytest.raises(RequestError, match="--from-native and --from-head were both given"):
        read_initial_weights(plain, Recipe(), tmp_path, from_native=True)
