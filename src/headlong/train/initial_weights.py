"""Initial weights: what training starts from, if not from the backbone's last layer.

In:  the model's checkpoint, the options --from-head and --from-native, the recipe.
Out: the weights of the model's own MTP layer, or of a head or MTP layer in a file; the head to
     train, initialised with them.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headlong.arrays import IntArray
from headlong.errors import HeadError, RequestError
from headlong.export.mtp_layers import check_family
from headlong.heads.head_files import WEIGHTS_FILE, read_head_weights, read_native_head
from headlong.heads.head_weights import HeadWeights
from headlong.heads.native_nextn import find_stripped
from headlong.train.export import RUN_FILE, hash_file
from headlong.train.growth import grow_from
from headlong.train.native_head import TorchNative
from headlong.train.recipe import Recipe
from headlong.train.teacher import Teacher
from headlong.train.torch_head import TorchHead, make_head
from headlong.weights.checkpoint import Checkpoint

_OMIT_FROM_NATIVE = "Omit --from-native to train a new head instead."


@dataclass(frozen=True, slots=True)
class InitialWeights:
    """The weights that training starts from."""

    weights: HeadWeights
    file: Path | None
    """The file or folder they were read from; None for the model's own file."""

    @property
    def is_native(self) -> bool:
        """Whether they are an MTP layer of the model, published or tuned."""
        return self.weights.checkpoint is not None

    def describe(self) -> dict[str, Any]:
        """Return their origin, and from run.json how they were trained."""
        if self.file is None:
            return {"native": True}
        folder = self.file if self.file.is_dir() else self.file.parent
        weights = folder / WEIGHTS_FILE if self.file.is_dir() else self.file
        record = folder / RUN_FILE
        run = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
        kept = ("training", "recipe", "data", "started_from")
        return {
            "native": self.is_native,
            "sha256": hash_file(weights) if weights.is_file() else None,
            "run": {name: run[name] for name in kept if name in run},
        }


def read_initial_weights(
    checkpoint: Checkpoint, recipe: Recipe, from_head: Path | None, *, from_native: bool
) -> InitialWeights | None:
    """Read the weights to start from; None for the backbone's last layer."""
    if from_native and from_head is not None:
        raise RequestError(
            "--from-native and --from-head were both given.",
            "The first starts from the model's own MTP layer, the second from a file.",
        )
    if from_native:
        initial = InitialWeights(_read_native(checkpoint), None)
    elif from_head is not None:
        initial = InitialWeights(_read_for_tuning(from_head, recipe), from_head)
    else:
        return None
    if initial.is_native:
        _check_native(initial.weights, recipe)
    return initial


def build_head(
    recipe: Recipe, teacher: Teacher, vocabulary: IntArray, initial: InitialWeights | None
) -> TorchHead:
    """Build the head to train, in its state before the first step."""
    if initial is not None and initial.is_native:
        return TorchNative(teacher, vocabulary, initial.weights)
    head = make_head(recipe.head, teacher, vocabulary, recipe.training.num_depths)
    if initial is not None:
        grow_from(head, initial.weights, vocabulary)
    return head


def adapt_recipe(recipe: Recipe, initial: InitialWeights | None) -> Recipe:
    """Return the recipe with the kind of head that is trained: an MTP layer is `nextn`."""
    if initial is None or not initial.is_native:
        return recipe
    return replace(recipe, head=replace(recipe.head, kind="nextn"))


def _read_native(checkpoint: Checkpoint) -> HeadWeights:
    weights = read_native_head(checkpoint, checkpoint.num_layers or 0)
    if weights is None:
        raise find_stripped(checkpoint) or HeadError(
            f"{checkpoint.path} has no MTP layer.", _OMIT_FROM_NATIVE
        )
    if weights.checkpoint is None:
        raise HeadError(
            f"{checkpoint.path} has {weights.kind} heads, which cannot be tuned: each of them "
            "drafts one depth.",
            _OMIT_FROM_NATIVE,
        )
    return weights


def _read_for_tuning(folder: Path, recipe: Recipe) -> HeadWeights:
    weights, kind = read_head_weights(folder), recipe.head.kind
    if weights.checkpoint is not None:
        return weights
    if weights.kind != kind or weights.vocabulary is None:
        raise HeadError(
            f"{folder} has a head of kind {weights.kind}; the recipe trains {kind} heads with a "
            "draft vocabulary of their own.",
            "Set head.kind in the recipe to the head's kind, or omit --from-head.",
        )
    return weights


def _check_native(weights: HeadWeights, recipe: Recipe) -> None:
    """Refuse families that cannot be written, and recipe keys that only fit new heads."""
    assert weights.checkpoint is not None
    check_family(weights.checkpoint)
    head = recipe.head
    for name, value, only in (("packed", head.packed, "full"), ("mlp_share", head.mlp_share, 1)):
        if value != only:
            raise RequestError(
                f"The recipe has head.{name} = {value!r}, which is for new heads; a model's own "
                "MTP layer keeps its form.",
                f"Set head.{name} = {only!r}; --head-quant packs the layer for drafting.",
            )
