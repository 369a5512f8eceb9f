"""Start: the head that training begins with, if not with the backbone's last layer.

In:  the model's checkpoint, what the user asked for, the recipe.
Out: its weights: the model's own MTP layer, or a head of a file, trained here or published as MTP
     layers are; and the head in training that drafts as they do.
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

_OTHERWISE = "Train a head of its own instead: leave --from-native out."


@dataclass(frozen=True, slots=True)
class Start:
    """The weights that training begins with."""

    weights: HeadWeights
    file: Path | None
    """Where they came from; None for the model's own file."""

    @property
    def is_native(self) -> bool:
        """Whether they are an MTP layer that the model came with, maybe tuned since."""
        return self.weights.checkpoint is not None

    def describe(self) -> dict[str, Any]:
        """Return what it was, and how it was made where that is known."""
        if self.file is None:
            return {"native": True}
        folder = self.file if self.file.is_dir() else self.file.parent
        weights = folder / WEIGHTS_FILE if self.file.is_dir() else self.file
        record = folder / RUN_FILE
        made = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
        kept = ("training", "recipe", "data", "started_from")
        return {
            "native": self.is_native,
            "sha256": hash_file(weights) if weights.is_file() else None,
            "run": {name: made[name] for name in kept if name in made},
        }


def read_start(
    checkpoint: Checkpoint, recipe: Recipe, from_head: Path | None, *, from_native: bool
) -> Start | None:
    """Read what training shall begin with; None for the backbone's last layer."""
    if from_native and from_head is not None:
        raise RequestError(
            "--from-native and --from-head were both given.",
            "The first begins with the model's own MTP layer, the second with a file.",
        )
    if from_native:
        start = Start(_read_native(checkpoint), None)
    elif from_head is not None:
        start = Start(_read_for_tuning(from_head, recipe), from_head)
    else:
        return None
    if start.is_native:
        _check_native(start.weights, recipe)
    return start


def begin_head(
    recipe: Recipe, teacher: Teacher, vocabulary: IntArray, start: Start | None
) -> TorchHead:
    """Build the head that is trained, as it is before its first step."""
    if start is not None and start.is_native:
        return TorchNative(teacher, vocabulary, start.weights)
    head = make_head(recipe.head, teacher, vocabulary, recipe.training.num_depths)
    if start is not None:
        grow_from(head, start.weights, vocabulary)
    return head


def as_started(recipe: Recipe, start: Start | None) -> Recipe:
    """Return the recipe of what is really trained: an MTP layer is what it is."""
    if start is None or not start.is_native:
        return recipe
    return replace(recipe, head=replace(recipe.head, kind="nextn"))


def _read_native(checkpoint: Checkpoint) -> HeadWeights:
    weights = read_native_head(checkpoint, checkpoint.num_layers or 0)
    if weights is None:
        raise find_stripped(checkpoint) or HeadError(
            f"{checkpoint.path} brings no MTP layer along.", _OTHERWISE
        )
    if weights.checkpoint is None:
        raise HeadError(
            f"{checkpoint.path} brings {weights.kind} heads along, which are not tuned here: each "
            "of them drafts one depth.",
            _OTHERWISE,
        )
    return weights


def _read_for_tuning(folder: Path, recipe: Recipe) -> HeadWeights:
    weights, kind = read_head_weights(folder), recipe.head.kind
    if weights.checkpoint is not None:
        return weights
    if weights.kind != kind or weights.vocabulary is None:
        raise HeadError(
            f"{folder} holds a head of kind {weights.kind}; the recipe trains {kind} heads with a "
            "draft vocabulary of their own.",
            "Set head.kind in the recipe to the head's kind, or start from nothing.",
        )
    return weights


def _check_native(weights: HeadWeights, recipe: Recipe) -> None:
    """Refuse what could not be written, and what a recipe says of heads of another make."""
    assert weights.checkpoint is not None
    check_family(weights.checkpoint)
    head = recipe.head
    for name, value, only in (("packed", head.packed, "full"), ("mlp_share", head.mlp_share, 1)):
        if value != only:
            raise RequestError(
                f"The recipe has head.{name} = {value!r}; a model's own MTP layer keeps its form.",
                f"Set head.{name} = {only!r}; --head-quant packs it when it drafts.",
            )
