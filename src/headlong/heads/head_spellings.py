"""How other projects spell the tensors of heads, and how they write draft vocabularies.

In:  a head folder's tensors under their own names, and its config.
Out: the kind of head, the tensors under our spelling, the draft vocabulary as backbone ids.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headlong.arrays import IntArray
from headlong.errors import HeadError
from headlong.heads.eagle3 import LAYER
from headlong.heads.head_weights import HEAD_REMEDY, HeadKind, list_names
from headlong.weights.mapped_file import shown
from headlong.weights.tensors import StoredTensor

_EAGLE3_NAME = re.compile(r"(?:model\.)?(?:midlayer\.|layers\.0\.hidden_norm\.).+")
# Medusa's own spelling: head, then block, then the LM head as one more unnamed block.
_MEDUSA_NAME = re.compile(
    r"(?:medusa_heads?\.)?(?P<head>\d{1,4})\.(?P<block>\d{1,4})\.(?P<linear>linear\.)?(?P<part>weight|bias)"
)


def find_kind(
    tensors: Mapping[str, StoredTensor], config: Mapping[str, Any], path: Path
) -> HeadKind:
    """Tell heads apart by the names of their tensors."""
    made_as = config.get("speculators_model_type", "eagle3")
    if made_as != "eagle3":
        raise HeadError(
            f"{path} holds a drafter of another kind, {shown(made_as)}, made with speculators.",
            f"Of its kinds EAGLE-3 is read here. {HEAD_REMEDY}",
        )
    named_eagle3 = "eagle3" in str(config.get("architectures")).lower()
    if named_eagle3 or any(map(_EAGLE3_NAME.fullmatch, tensors)):
        return "eagle3"
    if any(name.startswith("extra_heads.") for name in tensors):
        return "meta"
    if any(_MEDUSA_NAME.fullmatch(name) or name.startswith("lm_heads.") for name in tensors):
        return "medusa"
    if "nextn" in config:
        return "nextn"
    if {"fc.weight", "layers.0.self_attn.q_proj.weight"} <= tensors.keys():
        raise HeadError(
            f"{path} holds an EAGLE-1 head (fc and one layer without norms).",
            "Heads in EAGLE-3 format are read here; use one of those.",
        )
    raise HeadError(
        f"{path} holds no known head; its tensors are {list_names(sorted(tensors))}.",
        "Known are EAGLE-3, nextn (MTP layers), Medusa and Meta heads.",
    )


def respell(
    tensors: Mapping[str, StoredTensor], kind: HeadKind, path: Path
) -> dict[str, StoredTensor]:
    """Bring the spellings other projects use to one; refuse a tensor given under two of them."""
    if kind == "eagle3":
        names = {
            name: re.sub(r"^layers\.0\.", LAYER, name.removeprefix("model.")) for name in tensors
        }
    elif kind == "medusa":
        names = _medusa_names(tensors)
    else:
        names = {name: name for name in tensors}
    respelled = {names[name]: tensor for name, tensor in tensors.items()}
    if len(respelled) < len(tensors):
        twice = [name for name in respelled if list(names.values()).count(name) > 1]
        raise HeadError(
            f"{path} gives {list_names(twice)} more than once, under different spellings.",
            "Remove one of them.",
        )
    return respelled


def _medusa_names(tensors: Mapping[str, StoredTensor]) -> dict[str, str]:
    names: dict[str, str] = {}
    for name in tensors:
        match = _MEDUSA_NAME.fullmatch(name)
        if match is None:
            names[name] = name
        elif match["linear"]:
            names[name] = f"blocks.{match['head']}.layers.{match['block']}.{match['part']}"
        else:
            names[name] = f"lm_heads.{match['head']}.{match['part']}"
    return names


def read_vocabulary(
    tensors: dict[str, StoredTensor], config: dict[str, Any], path: Path
) -> IntArray | None:
    """Take the draft vocabulary out of a head's tensors, as backbone ids; None for all tokens."""
    token_map, d2t, t2d = (tensors.pop(name, None) for name in ("token_map", "d2t", "t2d"))
    if token_map is not None:
        return token_map.to_int64().reshape(-1)
    if d2t is None:
        if t2d is not None:
            raise HeadError(f"{path} has t2d but no d2t.", "Export the head again in full.")
        return None
    offsets = d2t.to_int64().reshape(-1)
    vocabulary: IntArray = np.arange(len(offsets), dtype=np.int64) + offsets
    if t2d is not None:
        mask = t2d.to_int64().reshape(-1)
        # The mask is as long as the vocabulary of the backbone that the head was made for.
        if config.setdefault("vocab_size", len(mask)) != len(mask):
            raise HeadError(
                f"{path}: t2d covers {len(mask)} tokens, config.json says "
                f"{shown(config['vocab_size'])}.",
                "Its files belong to different heads; export the head again.",
            )
        if not np.array_equal(np.flatnonzero(mask), np.sort(vocabulary)):
            raise HeadError(f"{path}: d2t and t2d name different tokens.", "Export the head again.")
    return vocabulary
