"""Export: a trained head as the folder that every loader takes, and back again.

In:  a head in torch. Out: `HeadWeights` in float16, written with `save_head`; for machines that
hand back small files only, the weights cut into parts that `cat` joins again.
"""

from pathlib import Path

import torch

from headlong.arrays import IntArray
from headlong.errors import HeadError
from headlong.heads.head_files import WEIGHTS_FILE, read_head_weights, save_head
from headlong.heads.head_weights import (
    QUANT_KEY,
    FloatType,
    HeadKind,
    HeadWeights,
    store_arrays,
)
from headlong.train.projection import running_parameters
from headlong.train.recipe import HeadRecipe, HeadShape
from headlong.train.torch_head import TorchHead

PART_BYTES = 14 * 2**20

_KINDS: dict[HeadShape, HeadKind] = {"eagle3": "eagle3", "nextn": "nextn", "medusa": "medusa"}


def head_weights(
    head: TorchHead, recipe: HeadRecipe, vocabulary: IntArray, float_type: FloatType = "float16"
) -> HeadWeights:
    """Return a trained head as a plain record; parameters are named as in files already."""
    arrays = {name: p.float().cpu().numpy() for name, p in running_parameters(head)}
    tensors = store_arrays(arrays, float_type)
    config = head.export_config()
    if recipe.packed != "full":
        config[QUANT_KEY] = recipe.packed
    return HeadWeights(_KINDS[recipe.kind], config, tensors, vocabulary)


def export_head(folder: Path, weights: HeadWeights) -> int:
    """Write a head folder; return the bytes of its weights file."""
    save_head(folder, weights)
    return (folder / WEIGHTS_FILE).stat().st_size


def split_weights(folder: Path) -> list[Path]:
    """Write a head's weights once more, in parts of at most 14 MiB; `cat` joins them."""
    data = (folder / WEIGHTS_FILE).read_bytes()
    parts: list[Path] = []
    for number, first in enumerate(range(0, len(data), PART_BYTES)):
        part = folder / f"{WEIGHTS_FILE}.part{number}"
        part.write_bytes(data[first : first + PART_BYTES])
        parts.append(part)
    return parts


def read_for_tuning(folder: Path, kind: HeadShape) -> HeadWeights:
    """Read a head that training shall go on from."""
    weights = read_head_weights(folder)
    if weights.kind != _KINDS[kind] or weights.vocabulary is None:
        raise HeadError(
            f"{folder} holds a head of kind {weights.kind}; the recipe trains {kind} heads with a "
            "draft vocabulary of their own.",
            "Set head.kind in the recipe to the head's kind, or start from nothing.",
        )
    return weights


def fill_head(head: TorchHead, weights: HeadWeights) -> None:
    """Start from the weights of an existing head."""
    named = {
        name: torch.from_numpy(tensor.to_float32().copy())
        for name, tensor in weights.tensors.items()
    }
    mismatch = head.load_state_dict(named, strict=False)
    if mismatch.missing_keys or mismatch.unexpected_keys:
        raise HeadError(
            f"{weights.source} differs from the head in training: it lacks "
            f"{mismatch.missing_keys[:4]} and has {mismatch.unexpected_keys[:4]} besides.",
            "Start from nothing, or from a head that headlong trained.",
        )
