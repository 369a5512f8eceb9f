"""The published families of native MTP layers: how they name tensors, and how their maths differ.

In:  a checkpoint's tensor names and model type.
Out: which family a head belongs to, its five switches, and its tensors under one spelling.
Rotary offset is no switch: a layer that counts all positions one higher computes the same. Where
engines disagree about a family, the row follows the majority. Nothing here computes anything.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

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
    """Which entry of `_NAMINGS` its tensors follow."""
    model_types: tuple[str, ...]
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


_ZEROED = NextnSwitches(first_embedding="zeroed")

FAMILIES = (
    NextnFamily("Qwen-style", "mtp", ()),
    NextnFamily(
        "Qwen3-Next / Qwen3.5",
        "mtp",
        ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
        NextnSwitches(norm="one_plus"),
    ),
    NextnFamily("EXAONE 4.5 / MoE", "mtp", ("exaone4_5", "exaone_moe")),
    NextnFamily("Nemotron 3", "mtp", ("nemotron_h",)),
    NextnFamily(
        "DeepSeek-V4",
        "mtp",
        ("deepseek_v4",),
        refusal="it carries a residual several times as wide as the hidden state",
    ),
    NextnFamily("DeepSeek-style", "layer", (), _ZEROED),
    NextnFamily(
        "DeepSeek-V3", "layer", ("deepseek_v3", "deepseek_v32", "deepseek2", "pangu"), _ZEROED
    ),
    NextnFamily(
        "GLM-4.5 / GLM-5",
        "layer",
        ("glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "glm4moe", "glm-dsa"),
        _ZEROED,
    ),
    NextnFamily("Qwen3-Next / Qwen3.5 (GGUF)", "layer", ("qwen3next", "qwen35", "qwen35moe")),
    NextnFamily("Hunyuan HY-V3", "layer", ("hunyuan_v3", "hy_v3", "hy-v3"), _ZEROED),
    NextnFamily("Ling / Bailing 2.5", "layer", ("bailing_hybrid", "bailing_moe_v2_5"), _ZEROED),
    NextnFamily("Ling / Bailing V3", "layer", ("bailing_moe_v3", "bailingmoe3")),
    NextnFamily(
        "Kimi-K3",
        "layer",
        ("kimi_k3",),
        NextnSwitches(carried="raw", first_embedding="zeroed"),
    ),
    NextnFamily(
        "Step-3.5",
        "layer",
        ("step3p5", "step3p7", "step35"),
        NextnSwitches(trunk="raw", carried="raw", norm="one_plus"),
    ),
    NextnFamily("MiMo-V2 (GGUF)", "layer", ("mimo2",), NextnSwitches(trunk="raw", carried="raw")),
    NextnFamily(
        "MiMo-7B",
        "mtp_layers",
        ("mimo",),
        NextnSwitches(concat="hidden_first", first_embedding="zeroed"),
    ),
    NextnFamily("MiMo-V2", "mtp.layers", ("mimo_v2", "mimo_v2_flash", "mimo_v2_pro")),
    NextnFamily("LongCat-Flash", "mtp.layers", ("longcat_flash",)),
    NextnFamily(
        "MiniMax-M3",
        "mtp.layers",
        ("minimax_m3",),
        NextnSwitches(carried="raw", norm="one_plus", first_embedding="zeroed"),
    ),
    NextnFamily(
        "Inkling",
        "mtp.layers",
        ("inkling",),
        refusal="its embeddings pass a norm of the backbone first, and its modules are chained",
    ),
    NextnFamily(
        "Ernie-4.5", "mtp_block", ("ernie4_5_moe",), refusal="its module has no final norm"
    ),
    NextnFamily(
        "Gemma 4 assistant",
        "projections",
        ("gemma4_assistant", "gemma4-assistant"),
        refusal="its layers attend to the backbone's own keys and values",
    ),
)
"""The first family of a naming stands in for model types that are not listed."""

# Each pattern has a group `rest` (the tensor within its module) and most a group `module`.
_NAMINGS = {
    "mtp": re.compile(r"mtp\.(?:layers\.)?(?P<module>\d{1,6})\.(?P<rest>.+)|mtp\.(?P<stem>.+)"),
    "mtp_layers": re.compile(r"model\.mtp_layers\.(?P<module>\d{1,6})\.(?P<rest>.+)"),
    "mtp.layers": re.compile(
        r"model\.mtp\.layers\.(?P<module>\d{1,6})\.(?P<rest>.+)|model\.mtp\.(?P<stem>.+)"
    ),
    "mtp_block": re.compile(
        r"model\.mtp_(?:emb_norm|hidden_norm|linear_proj|block)\.(?P<module>\d{1,6})\.(?P<rest>.+)"
    ),
    "projections": re.compile(r"(?:nextn\.)?(?P<stem>(?:pre|post)_projection\..+)"),
    "layer": re.compile(r"(?:model\.layers|blk)\.(?P<module>\d{1,6})\.(?P<rest>.+)"),
}

_STEMS = {
    "fc": ("fc", "eh_proj", "nextn.eh_proj", "input_proj"),
    "pre_fc_norm_embedding": (
        "pre_fc_norm_embedding",
        "enorm",
        "nextn.enorm",
        "token_layernorm",
    ),
    "pre_fc_norm_hidden": ("pre_fc_norm_hidden", "hnorm", "nextn.hnorm", "hidden_layernorm"),
    "norm": ("shared_head.norm", "nextn.shared_head_norm", "final_layernorm"),
    "lm_head": ("lm_head", "shared_head.head", "shared_head.output", "nextn.shared_head_head"),
    "embed_tokens": ("embed_tokens", "nextn.embed_tokens"),
}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_OURS = {theirs: ours for ours, spellings in _STEMS.items() for theirs in spellings} | {
    theirs: f"{MTP_LAYER}{ours}" for ours, theirs in _LAYER_NAMES.items()
}

_PARTS = {
    "multi-head latent attention": r"kv_a_proj|q_a_proj|kv_b_proj|attn_kv_a|attn_q_a|attn_k_b",
    "a mixture of experts": r"\.experts?\.|mlp\.gate\.|shared_expert|sparse_moe|_exps\.|_inp\.",
    "attention sinks": r"sink",
    "an output gate in attention": r"self_attn\.g_proj|attn_gate",
    "a sparse-attention indexer": r"indexer",
    "a mixer that is no attention": r"mixer\.|linear_attn|ssm_",
}


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
        for part, pattern in _PARTS.items()
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
    return {field.name: getattr(switches, field.name) for field in fields(switches)}


def read_switches(config: Mapping[str, Any], source: str) -> NextnSwitches:
    """Read the switches of a head folder; all five must be there."""
    given = config.get("nextn")
    allowed = {
        "concat": ("embedding_first", "hidden_first"),
        "trunk": ("normed", "raw"),
        "carried": ("normed", "raw"),
        "norm": ("plain", "one_plus"),
        "first_embedding": ("kept", "zeroed"),
    }
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
