"""Mixtures of experts for every architecture that has them, from tensors under GGUF's names."""

import numpy as np

from headlong.models.experts_config import ExpertsConfig
from headlong.models.llama import build_mlp, build_norm
from headlong.models.model_config import ModelConfig
from headlong.ops.blocks import Activation, Channel, Expert, Experts, GatedMlp, Linear, Norm, Router
from headlong.weights.weight_reader import WeightReader


def build_channel(
    config: ModelConfig, weights: WeightReader, index: int, norm_name: str = "ffn_norm"
) -> Channel:
    """Build one layer's channel part: experts where the file has a router, else a gated MLP."""
    sizes = config.experts
    if sizes is None or not weights.has(f"blk.{index}.ffn_gate_inp.weight"):
        return build_mlp(config, weights, index, norm_name)
    return build_experts(config, sizes, weights, index, norm_name)


def build_experts(
    config: ModelConfig,
    sizes: ExpertsConfig,
    weights: WeightReader,
    index: int,
    norm_name: str = "ffn_norm",
) -> Experts:
    """Build one layer's mixture of experts, with the parts that the file has."""
    prefix, hidden = f"blk.{index}.", config.hidden_size
    norm = build_norm(config, weights, f"{prefix}{norm_name}.weight", hidden)
    gate_name = f"{prefix}ffn_gate_inp_shexp.weight"
    has_gate = sizes.shared_size > 0 and weights.has(gate_name)
    latent = sizes.latent_size

    def linear(name: str, outputs: int, inputs: int) -> Linear:
        return Linear(weights.matrix(f"{prefix}{name}.weight", (outputs, inputs)))

    return Experts(
        norm=norm,
        router=_router(sizes, weights, prefix, hidden),
        experts=_experts(sizes, weights, prefix, latent or hidden),
        activation=_activation(sizes),
        shared=_shared(sizes, weights, prefix, norm) if sizes.shared_size else None,
        shared_gate=Linear(weights.precise_matrix(gate_name, (1, hidden))) if has_gate else None,
        reduce=None if latent is None else linear("ffn_latent_down", latent, hidden),
        expand=None if latent is None else linear("ffn_latent_up", hidden, latent),
    )


def _router(sizes: ExpertsConfig, weights: WeightReader, prefix: str, hidden: int) -> Router:
    num_experts = sizes.num_experts
    name, shape = f"{prefix}ffn_gate_inp.weight", (num_experts, hidden)
    bias = weights.optional_vector(f"{prefix}exp_probs_b.bias", num_experts)
    return Router(
        linear=Linear(weights.precise_matrix(name, shape)),
        num_chosen=sizes.num_chosen,
        scoring=sizes.scoring or ("softmax" if bias is None else "sigmoid"),
        is_renormalised=sizes.is_renormalised,
        scales=None if sizes.scale == 1 else np.full(num_experts, sizes.scale, np.float32),
        choice_bias=bias,
        num_groups=sizes.num_groups,
        num_chosen_groups=sizes.num_chosen_groups,
    )


def _experts(
    sizes: ExpertsConfig, weights: WeightReader, prefix: str, width: int
) -> tuple[Expert, ...]:
    num_experts, inner = sizes.num_experts, sizes.expert_size

    def linears(kind: str, outputs: int, inputs: int) -> list[Linear]:
        name, shape = f"{prefix}ffn_{kind}_exps.weight", (num_experts, outputs, inputs)
        return [Linear(matrix) for matrix in weights.experts(name, shape)]

    gates: list[Linear] | list[None] = [None] * num_experts
    if sizes.is_gated:
        gates = linears("gate", inner, width)
    ups, downs = linears("up", inner, width), linears("down", width, inner)
    return tuple(Expert(*three) for three in zip(gates, ups, downs, strict=True))


def _shared(sizes: ExpertsConfig, weights: WeightReader, prefix: str, norm: Norm) -> GatedMlp:
    inner, hidden = sizes.shared_size, len(norm.weight)

    def linear(kind: str, outputs: int, inputs: int) -> Linear:
        return Linear(weights.matrix(f"{prefix}ffn_{kind}_shexp.weight", (outputs, inputs)))

    return GatedMlp(
        norm=norm,
        gate=linear("gate", inner, hidden) if sizes.is_gated else None,
        up=linear("up", inner, hidden),
        down=linear("down", hidden, inner),
        activation=_activation(sizes),
    )


def _activation(sizes: ExpertsConfig) -> Activation:
    return "silu" if sizes.is_gated else "relu_squared"
