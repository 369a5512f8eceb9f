"""The published families of native MTP layers: how they name tensors, and how their maths differ.

In:  a checkpoint's tensor names and model type; the table in `nextn_families.toml`.
Out: which family a head belongs to, its five switches, and its tensors under one spelling.
Rotary offset is no switch: a layer that counts all positions one higher computes the same. Where
engines disagree about a family, the row follows the majority. Nothing here computes anything.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from headlong.errors import HeadError
from headlong.heads.head_weights import ASK_FOR_ANOTHER, DRAFT_WITHOUT
from headlong.weights.mapped_file import shown
from headlong.weights.tensors import StoredTensor

MTP_LAYER = "layers.0."


@dataclass(frozen=True, slots=True)
class NextnSwitches:
    """The five ways in which native MTP layers differ."""

    concat: Literal["embedding_first", "hidden_first"] = "embedding_first"
    """Order of the two halves that the projection reads."""
    trunk: Literal["normed", "raw"] = "normed"
    """The backbone's hidden state after or before its final norm."""
    carried: Literal["normed", "raw"] = "normed"
    """What the next depth reads: the layer's result after or before the head's final norm."""
    norm: Literal["plain", "one_plus"] = "plain"
    """Norms multiply by w, or by 1 + w (zero-centred weights)."""
    first_embedding: Literal["kept", "zeroed"] = "kept"
    """Whether the row at position 0 sees its token."""


@dataclass(frozen=True, slots=True)
class NextnFamily:
    """One row of the table."""

    name: str
    naming: str
    """Which of the table's namings its tensors follow."""
    model_types: list[str]
    """config.json's model_type, or GGUF's general.architecture."""
    switches: NextnSwitches = NextnSwitches()
    refusal: str = ""
    """Why no choice of switches computes it; empty when one does."""


@dataclass(frozen=True, slots=True)
class NextnModule:
    """The first MTP module found among a checkpoint's tensors."""

    family: NextnFamily
    is_known: bool
    """False when the model type is not in the table and the naming's first family stands in."""
    tensors: dict[str, StoredTensor]
    """Under our spelling: `fc.weight`, `layers.0.self_attn.q_proj.weight`, …"""
    other_modules: tuple[str, ...]
    """Names of the tensors of further modules."""


_TABLE: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("nextn_families.toml").read_text("utf-8")
)
FAMILIES = tuple(
    NextnFamily(**row | {"switches": NextnSwitches(**row.get("switches", {}))})
    for row in _TABLE["family"]
)
"""The first family of a naming stands in for model types that are not listed."""
_NAMINGS = {name: re.compile(pattern) for name, pattern in _TABLE["namings"].items()}
_OURS = {theirs: ours for ours, names in _TABLE["spellings"].items() for theirs in names}


def find_module(
    tensors: Mapping[str, StoredTensor], model_type: str, num_layers: int
) -> NextnModule | None:
    """Find the MTP module behind a backbone of `num_layers` layers; None when there is none."""
    found: dict[tuple[str, int], dict[str, str]] = {}
    for name in tensors:
        place = _place(name, num_layers)
        if place is not None:
            naming, module, ours = place
            found.setdefault((naming, module), {})[ours] = name
    if not found:
        return None
    order = list(_NAMINGS)
    first = min(found, key=lambda key: (order.index(key[0]), key[1]))
    family = _family(first[0], model_type)
    others = [names for key, names in found.items() if key != first]
    return NextnModule(
        family=family,
        is_known=model_type in family.model_types,
        tensors={ours: tensors[name] for ours, name in found[first].items()},
        other_modules=tuple(sorted(name for names in others for name in names.values())),
    )


def refuse_uncomputed(module: NextnModule, source: str, query_rows: int) -> None:
    """Refuse a module whose layer needs parts that the op set does not have."""
    needs = [
        part
        for part, pattern in _TABLE["uncomputed_parts"].items()
        if any(re.search(pattern, name) for name in module.tensors)
    ]
    query = module.tensors.get(f"{MTP_LAYER}self_attn.q_proj.weight")
    if query is not None and query.shape[:1] == (2 * query_rows,):
        needs.append("an output gate in attention")
    reason = f"needs {' and '.join(needs)}" if needs else module.family.refusal
    if reason:
        raise HeadError(
            f"{source} holds an MTP head of the {module.family.name} family, which is not "
            f"computed here: {reason}.",
            "Name a head in EAGLE-3 format with --head DIR (head=… in Python), or "
            f"{DRAFT_WITHOUT}.",
        )


def write_switches(switches: NextnSwitches) -> dict[str, str]:
    """Return switches as config.json holds them."""
    return asdict(switches)


def read_switches(config: Mapping[str, Any], source: str) -> NextnSwitches:
    """Read the switches of a head folder; all five must be there."""
    given = config.get("nextn")
    allowed = {field.name: get_args(field.type) for field in fields(NextnSwitches)}
    if not isinstance(given, dict) or given.keys() != allowed.keys():
        raise HeadError(
            f"{source}: config.json has nextn switches {shown(given)}.",
            f"It must give {', '.join(allowed)} and nothing else.",
        )
    for name, choices in allowed.items():
        if given[name] not in choices:
            raise HeadError(
                f"{source}: the nextn switch {name} is {shown(given[name])}.",
                f"It must be one of {', '.join(choices)}. {ASK_FOR_ANOTHER}",
            )
    return NextnSwitches(**given)


def _place(name: str, num_layers: int) -> tuple[str, int, str] | None:
    """Return (naming, module, our spelling) of a tensor of an MTP head, None for all others."""
    # Multimodal checkpoints put the text model's names behind a prefix.
    text_name = name.replace("language_model.", "", 1)
    for naming, pattern in _NAMINGS.items():
        match = pattern.fullmatch(text_name)
        if match is None:
            continue
        groups = match.groupdict()
        if groups.get("stem") is not None:
            return naming, 0, groups["stem"]
        module = int(groups["module"])
        if naming == "layer" and module < num_layers:
            return None
        return naming, module, _our_spelling(groups["rest"])
    return None


def _our_spelling(rest: str) -> str:
    stem, _, kind = rest.rpartition(".")  # kind is weight or bias
    for wrapper in ("transformer.", "transformer_layer."):
        stem = stem.removeprefix(wrapper)
    if stem == "pre_mlp_layernorm":
        stem = "post_attention_layernorm"
    return f"{_OURS.get(stem, MTP_LAYER + stem)}.{kind}"


def _family(naming: str, model_type: str) -> NextnFamily:
    rows = [family for family in FAMILIES if family.naming == naming]
    return next((family for family in rows if model_type in family.model_types), rows[0])
