"""MTP tensors: one spelling for the modules behind a backbone's last layer.

In:  names as families publish them in safetensors files, and how many layers the backbone has.
Out: module i is block N + i, N being the number of layers, as in GGUF files. What a module has
around its layer is called `blk.7.nextn.eh_proj.weight`; parts of the layer itself become
`model.layers.7.…`, which the tables of `tensor_names` translate as those of any other layer.
"""

import re
from collections.abc import Iterable

# A group `module` counts from 0, a group `block` from the backbone's first layer.
_MODULES = (
    re.compile(r"(?:model\.)?mtp\.(?:layers\.)?(?P<module>\d{1,3})\.(?P<rest>.+)"),
    re.compile(r"model\.mtp_layers\.(?P<module>\d{1,3})\.(?P<rest>.+)"),
    re.compile(r"model\.layers\.(?P<block>\d{1,3})\.(?P<rest>.+)"),
    re.compile(r"(?:model\.)?mtp\.(?P<rest>\w+\.(?:weight|bias))"),
)

_AROUND_LAYER = {
    "eh_proj": ("fc", "eh_proj", "input_proj"),
    "enorm": ("pre_fc_norm_embedding", "enorm", "token_layernorm"),
    "hnorm": ("pre_fc_norm_hidden", "hnorm", "hidden_layernorm"),
    "shared_head_norm": ("norm", "shared_head.norm", "final_layernorm"),
    "shared_head_head": ("lm_head", "shared_head.head", "shared_head.output"),
    "embed_tokens": ("embed_tokens",),
}
_CANONICAL = {theirs: ours for ours, names in _AROUND_LAYER.items() for theirs in names}

_LAYER_PREFIXES = ("transformer.", "transformer_layer.")
_LAYER_SPELLINGS = {"pre_mlp_layernorm": "post_attention_layernorm"}


# Nemotron publishes a module as a pattern of layers, one for attention and one for experts.
_PATTERN = re.compile(r"mtp\.layers\.([01])\.(.+)")
_PATTERN_NORMS = {"0.norm.weight": "input_layernorm", "1.norm.weight": "post_attention_norm"}


def joined_mtp_name(name: str) -> str:
    """Return a name of Nemotron's as if both layers of a module were one."""
    match = _PATTERN.fullmatch(name)
    if match is None:
        return name
    part = _PATTERN_NORMS.get(f"{match[1]}.{match[2]}")
    return f"mtp.layers.0.{match[2] if part is None else f'{part}.weight'}"


def has_mtp_module(names: Iterable[str], num_layers: int) -> bool:
    """Tell whether there are tensors of an MTP module among these."""
    return any(canonical_mtp_name(name, num_layers) != name for name in names)


def canonical_mtp_name(name: str, num_layers: int) -> str:
    """Return a tensor's name in the one spelling; one that is not of an MTP module stays."""
    for pattern in _MODULES:
        match = pattern.fullmatch(name)
        if match is None:
            continue
        groups = match.groupdict()
        block = int(groups.get("block") or num_layers + int(groups.get("module") or 0))
        return name if block < num_layers else _in_block(block, groups["rest"])
    return name


def _in_block(block: int, rest: str) -> str:
    stem, _, kind = rest.rpartition(".")  # kind is weight or bias
    if stem in _CANONICAL:
        return f"blk.{block}.nextn.{_CANONICAL[stem]}.{kind}"
    for prefix in _LAYER_PREFIXES:
        rest = rest.removeprefix(prefix)
    part, dot, tail = rest.partition(".")
    return f"model.layers.{block}.{_LAYER_SPELLINGS.get(part, part)}{dot}{tail}"
