"""The numbers that define a backbone's mixtures of experts, from GGUF metadata or config.json."""

from dataclasses import dataclass
from typing import Literal

from headlong.errors import ArchitectureError, CheckpointError
from headlong.models.settings import Settings

MAX_EXPERTS = 4096


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """Sizes of the layers that have experts; which layers those are, their tensors tell."""

    num_experts: int
    num_chosen: int
    expert_size: int
    """Inner size of one expert."""
    shared_size: int = 0
    """Inner size of the part that all rows go through; 0 where there is none."""
    latent_size: int | None = None
    """What experts read and write, where that is not the hidden size."""
    scoring: Literal["softmax", "sigmoid"] | None = None
    """None where the file does not say; a bias for the choice then means sigmoid."""
    is_renormalised: bool = True
    scale: float = 1.0
    """Multiplies the shares of all experts."""
    num_groups: int = 1
    num_chosen_groups: int = 1
    is_gated: bool = True
    """Whether experts and shared part are gated MLPs; others square what is positive."""

    def __post_init__(self) -> None:
        groups, chosen_groups = self.num_groups, self.num_chosen_groups
        are_even = groups >= 1 and self.num_experts % max(groups, 1) == 0
        in_reach = self.num_experts // max(groups, 1) * chosen_groups
        are_groups_sound = are_even and 1 <= chosen_groups <= groups
        has_pairs = groups == 1 or self.num_experts >= 2 * groups
        are_sizes_sound = 1 <= self.expert_size <= 2**20 and 0 <= self.shared_size <= 2**20
        is_scale_sound = 1e-30 < abs(self.scale) < 1e30
        is_count_sound = 1 <= self.num_chosen <= in_reach and self.num_experts <= MAX_EXPERTS
        if not (
            are_groups_sound and has_pairs and are_sizes_sound and is_count_sound and is_scale_sound
        ):
            raise CheckpointError(
                f"{self.num_chosen} of {self.num_experts} experts of size {self.expert_size} are "
                f"chosen, from {chosen_groups} of {groups} groups, beside a shared part of size "
                f"{self.shared_size}, and scaled by {self.scale:g}.",
                "These numbers do not fit together; the model's metadata is damaged.",
            )


def gguf_experts(keys: Settings, *, is_usually_renormalised: bool = True) -> ExpertsConfig | None:
    """Read them from GGUF metadata; None where a model has no experts.

    What is not said of shares differs: only DeepSeek's are then not divided by their sum.
    """
    num_experts = keys.integer("expert_count", 0)
    if num_experts == 0:
        return None
    expert_size = keys.integer("expert_feed_forward_length")
    shared_size = keys.integer("expert_shared_count", 0) * expert_size
    scorings: dict[int, Literal["softmax", "sigmoid"] | None]
    scorings = {0: None, 1: "softmax", 2: "sigmoid"}
    scoring = keys.integer("expert_gating_func", 0)
    if scoring not in scorings:
        raise _unknown_scoring(str(scoring))
    return ExpertsConfig(
        num_experts=num_experts,
        num_chosen=keys.integer("expert_used_count"),
        expert_size=expert_size,
        shared_size=keys.integer("expert_shared_feed_forward_length", shared_size),
        latent_size=keys.integer("moe_latent_size", 0) or None,
        scoring=scorings[scoring],
        is_renormalised=keys.flag("expert_weights_norm", default=is_usually_renormalised),
        scale=keys.number("expert_weights_scale", 0.0) or 1.0,
        num_groups=keys.integer("expert_group_count", 1) or 1,
        num_chosen_groups=keys.integer("expert_group_used_count", 1) or 1,
    )


def hugging_face_experts(keys: Settings) -> ExpertsConfig | None:
    """Read them from config.json; None where a model has no experts."""
    names = ("n_routed_experts", "num_experts", "num_local_experts")
    num_experts = next((keys.integer(name) for name in names if keys.has(name)), 0)
    if num_experts == 0:
        return None
    num_groups = keys.integer("n_group", 1) or 1
    if num_groups > 1 and keys.text("topk_method", "") == "group_limited_greedy":
        raise ArchitectureError(
            f"The model chooses {num_groups} groups of experts by their best one (DeepSeek-V2).",
            "Groups are chosen by their two best here; use DeepSeek-V2-Lite, or V3.",
        )
    expert_size = keys.integer("moe_intermediate_size")
    shared_size = keys.integer("n_shared_experts", 0) * expert_size
    shared_size = keys.integer("shared_expert_intermediate_size", shared_size)
    return ExpertsConfig(
        num_experts=num_experts,
        num_chosen=keys.integer("num_experts_per_tok", keys.integer("top_k_experts", 0)),
        expert_size=expert_size,
        shared_size=keys.integer("moe_shared_expert_intermediate_size", shared_size),
        latent_size=keys.integer("moe_latent_size", 0) or None,
        scoring=_scoring(keys.text("scoring_func", "")),
        is_renormalised=keys.flag("norm_topk_prob", default=True),
        scale=keys.number("routed_scaling_factor", 1.0),
        num_groups=num_groups,
        num_chosen_groups=keys.integer("topk_group", 1) or 1,
    )


def _scoring(name: str) -> Literal["softmax", "sigmoid"] | None:
    if name == "softmax":
        return "softmax"
    if name == "sigmoid":
        return "sigmoid"
    if name:
        raise _unknown_scoring(name)
    return None


def _unknown_scoring(name: str) -> ArchitectureError:
    return ArchitectureError(
        f"The model scores its experts by {name!r}.",
        "Known are 'softmax' and 'sigmoid'; use a checkpoint without it.",
    )
