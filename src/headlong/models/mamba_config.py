"""The numbers that define Mamba-2 layers and the pattern they stand in (Nemotron-H)."""

import math
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from headlong.errors import ArchitectureError, CheckpointError
from headlong.models.settings import Settings

_KINDS = {
    "linear_attention": "M",
    "mamba": "M",
    "full_attention": "*",
    "attention": "*",
    "mlp": "-",
    "moe": "E",
}
"""How layers_block_type spells the letters of hybrid_override_pattern."""


@dataclass(frozen=True, slots=True)
class MambaConfig:
    """Sizes of a hybrid model's Mamba-2 layers, and the kind of every layer."""

    kinds: str
    """One letter a layer: M is Mamba-2, * attention, - a dense MLP, E a mixture of experts."""
    num_heads: int
    head_dim: int
    num_groups: int
    state_size: int
    conv_width: int
    step_limits: tuple[float, float] = (0.0, math.inf)

    def __post_init__(self) -> None:
        heads, groups = self.num_heads, self.num_groups
        sizes = (heads, groups, self.head_dim, self.state_size)
        are_sound = min(sizes) >= 1 and heads <= 1024 and heads % groups == 0
        in_reach = max(self.head_dim, self.state_size) <= 4096 and 2 <= self.conv_width <= 16
        least, most = self.step_limits
        if not (are_sound and in_reach and 0 <= least <= most):
            raise CheckpointError(
                f"Mamba-2 layers with {heads} heads of {self.head_dim} in {groups} groups, states "
                f"of {self.state_size}, a convolution over {self.conv_width} rows and time steps "
                f"from {least:g} to {most:g}.",
                "Heads must share groups evenly; the model's metadata is damaged.",
            )
        unknown = sorted(set(self.kinds) - set("M*-E"))
        if unknown:
            raise ArchitectureError(
                f"The model has layers of the kind {unknown[0]!r}, or lacks their tensors.",
                "Known are M (Mamba-2), * (attention), - (MLP) and E (mixture of experts).",
            )


def hugging_face_mamba(keys: Settings) -> MambaConfig | None:
    """Read them from config.json; None where a model has no Mamba-2 layers."""
    if not keys.has("mamba_num_heads"):
        return None
    if keys.flag("mamba_proj_bias") or keys.flag("use_bias"):
        raise ArchitectureError(
            "The model has biases in its Mamba-2 projections.",
            "Such models are not computed here; use another one.",
        )
    limits = [_number(one) for one in keys.items("time_step_limit") or (0.0, math.inf)]
    if len(limits) != 2:
        raise CheckpointError(
            f"time_step_limit has {len(limits)} numbers, not 2.",
            "The model's metadata is damaged; pull the model again.",
        )
    return MambaConfig(
        kinds=read_kinds(keys),
        num_heads=keys.integer("mamba_num_heads"),
        head_dim=keys.integer("mamba_head_dim"),
        num_groups=keys.integer("n_groups"),
        state_size=keys.integer("ssm_state_size"),
        conv_width=keys.integer("conv_kernel"),
        step_limits=(limits[0], limits[1]),
    )


def read_kinds(keys: Settings) -> str:
    """Return a letter per layer, in whichever way config.json says it."""
    if keys.has("layers_block_type"):
        kinds = [str(kind) for kind in keys.items("layers_block_type")]
        return "".join(_KINDS.get(kind, "?") for kind in kinds)
    return keys.text("hybrid_override_pattern")


def gguf_mamba(keys: Settings, num_layers: int, names: Container[str]) -> MambaConfig | None:
    """Read them from GGUF metadata; None where a model has no Mamba-2 layers.

    Metadata tells only some kinds of layers apart, but the tensors' names tell all.
    """
    if not keys.has("ssm.group_count"):
        return None
    num_heads = keys.integer("ssm.time_step_rank")
    return MambaConfig(
        kinds="".join(_kind_of(f"blk.{index}.", names) for index in range(num_layers)),
        num_heads=num_heads,
        head_dim=keys.integer("ssm.inner_size") // max(num_heads, 1),
        num_groups=keys.integer("ssm.group_count"),
        state_size=keys.integer("ssm.state_size"),
        conv_width=keys.integer("ssm.conv_kernel"),
    )


def _kind_of(prefix: str, names: Container[str]) -> str:
    marks = {"ssm_in": "M", "attn_q": "*", "ffn_gate_inp": "E", "ffn_up": "-"}
    kinds = [kind for mark, kind in marks.items() if f"{prefix}{mark}.weight" in names]
    return kinds[0] if kinds else "?"


def _number(value: Any) -> float:
    """Read a number that transformers may have saved as {"__float__": "Infinity"}."""
    if isinstance(value, dict):
        value = value.get("__float__")
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
