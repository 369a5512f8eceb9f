"""Random heads of every kind for a given backbone: seeded, small, and of no use as drafters.

They come as `HeadWeights`, so that tests can damage, save or build them.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from headlong.arrays import FloatArray, IntArray
from headlong.heads.eagle3 import default_taps, make_eagle3_config
from headlong.heads.head_weights import FloatType, HeadKind, HeadWeights, store_arrays
from headlong.heads.nextn import make_nextn_config
from headlong.heads.nextn_families import NextnSwitches
from headlong.heads.parallel import make_medusa_config, make_meta_config
from headlong.models.model_config import ModelConfig

HEAD_KINDS: tuple[HeadKind, ...] = ("eagle3", "nextn", "medusa", "meta")


def random_head(kind: HeadKind, config: ModelConfig, seed: int = 0) -> HeadWeights:
    """Make a random head of any kind; recursive ones and Medusa draft from half the vocabulary."""
    half = config.vocab_size // 2
    if kind == "eagle3":
        return random_eagle3(config, seed, draft_vocab_size=half)
    if kind == "nextn":
        return random_nextn(config, seed, draft_vocab_size=half)
    if kind == "medusa":
        return random_medusa(config, seed, draft_vocab_size=half)
    return random_meta(config, seed)


def random_eagle3(
    config: ModelConfig,
    seed: int = 0,
    *,
    draft_vocab_size: int | None = None,
    float_type: FloatType = "float32",
    norm_before_fc: bool = False,
) -> HeadWeights:
    """Make an EAGLE-3-format head; backbones of 3 to 6 layers get their last three as taps."""
    rng, hidden = np.random.default_rng([seed, 3]), config.hidden_size
    vocabulary = _random_vocabulary(rng, config, draft_vocab_size)
    num_drafted = config.vocab_size if vocabulary is None else len(vocabulary)
    arrays = {
        "fc.weight": _normal(rng, hidden, 3 * hidden),
        **_random_layer(rng, config, "midlayer.", 2 * hidden),
        "midlayer.hidden_norm.weight": _near_one(rng, hidden),
        "norm.weight": _near_one(rng, hidden),
        "lm_head.weight": _normal(rng, num_drafted, hidden),
    }
    head_config = make_eagle3_config(config, num_drafted)
    if norm_before_fc:
        arrays["input_norm.weight"] = _near_one(rng, 3 * hidden)
        head_config["norm_before_fc"] = True
    usual = default_taps(config.num_layers)
    if not usual[0] < usual[1] < usual[2]:
        last = config.num_layers
        head_config["eagle_aux_hidden_state_layer_ids"] = [last - 3, last - 2, last - 1]
    return HeadWeights("eagle3", head_config, store_arrays(arrays, float_type), vocabulary)


def random_nextn(
    config: ModelConfig,
    seed: int = 0,
    *,
    switches: NextnSwitches | None = None,
    draft_vocab_size: int | None = None,
    layer: str = "llama",
    float_type: FloatType = "float32",
) -> HeadWeights:
    """Make a nextn head; its layer is "llama", "qwen2" (q/k/v biases) or "qwen3" (q/k norms)."""
    rng = np.random.default_rng([seed, 4])
    switches = switches or NextnSwitches()
    vocabulary = _random_vocabulary(rng, config, draft_vocab_size)
    arrays = nextn_arrays(config, rng, layer)
    if switches.norm == "one_plus":
        norms = {name: values - 1 for name, values in arrays.items() if "norm" in name}
        arrays |= norms
    if vocabulary is not None:
        arrays["lm_head.weight"] = _normal(rng, len(vocabulary), config.hidden_size)
    head_config = make_nextn_config(config, switches, draft_vocab_size)
    return HeadWeights("nextn", head_config, store_arrays(arrays, float_type), vocabulary)


def random_medusa(
    config: ModelConfig,
    seed: int = 0,
    *,
    num_depths: int = 3,
    num_blocks: int = 2,
    draft_vocab_size: int | None = None,
    float_type: FloatType = "float32",
) -> HeadWeights:
    """Make Medusa heads."""
    rng, hidden = np.random.default_rng([seed, 5]), config.hidden_size
    vocabulary = _random_vocabulary(rng, config, draft_vocab_size)
    num_drafted = config.vocab_size if vocabulary is None else len(vocabulary)
    arrays: dict[str, FloatArray] = {}
    for head in range(num_depths):
        for block in range(num_blocks):
            arrays[f"blocks.{head}.layers.{block}.weight"] = _normal(rng, hidden, hidden)
            arrays[f"blocks.{head}.layers.{block}.bias"] = _normal(rng, hidden)
        arrays[f"lm_heads.{head}.weight"] = _normal(rng, num_drafted, hidden)
    head_config = make_medusa_config(config, num_depths, num_blocks, draft_vocab_size)
    return HeadWeights("medusa", head_config, store_arrays(arrays, float_type), vocabulary)


def random_meta(
    config: ModelConfig, seed: int = 0, *, num_depths: int = 3, float_type: FloatType = "float32"
) -> HeadWeights:
    """Make Meta-style heads."""
    rng = np.random.default_rng([seed, 6])
    arrays: dict[str, FloatArray] = {}
    for head in range(num_depths):
        arrays |= _random_layer(rng, config, f"extra_heads.{head}.", config.hidden_size)
    head_config = make_meta_config(config, num_depths)
    return HeadWeights("meta", head_config, store_arrays(arrays, float_type))


def nextn_arrays(
    config: ModelConfig, rng: np.random.Generator, layer: str = "llama"
) -> dict[str, FloatArray]:
    """Make the tensors of one MTP module, under our spelling, with plain norms."""
    hidden = config.hidden_size
    return {
        "fc.weight": _normal(rng, hidden, 2 * hidden),
        "pre_fc_norm_embedding.weight": _near_one(rng, hidden),
        "pre_fc_norm_hidden.weight": _near_one(rng, hidden),
        **_random_layer(rng, config, "layers.0.", hidden, layer),
        "norm.weight": _near_one(rng, hidden),
    }


def arrays_of(weights: HeadWeights) -> Mapping[str, FloatArray]:
    """Return a head's tensors unpacked."""
    return {name: tensor.to_float32() for name, tensor in weights.tensors.items()}


def _random_layer(
    rng: np.random.Generator,
    config: ModelConfig,
    prefix: str,
    input_size: int,
    layer: str = "llama",
) -> dict[str, FloatArray]:
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    arrays: dict[str, Any] = {
        "input_layernorm.weight": _near_one(rng, hidden),
        "self_attn.q_proj.weight": _normal(rng, queries, input_size),
        "self_attn.k_proj.weight": _normal(rng, keys, input_size),
        "self_attn.v_proj.weight": _normal(rng, keys, input_size),
        "self_attn.o_proj.weight": _normal(rng, hidden, queries),
        "post_attention_layernorm.weight": _near_one(rng, hidden),
        "mlp.gate_proj.weight": _normal(rng, inner, hidden),
        "mlp.up_proj.weight": _normal(rng, inner, hidden),
        "mlp.down_proj.weight": _normal(rng, hidden, inner),
    }
    if layer == "qwen2":
        arrays["self_attn.q_proj.bias"] = _normal(rng, queries)
        arrays["self_attn.k_proj.bias"] = _normal(rng, keys)
        arrays["self_attn.v_proj.bias"] = _normal(rng, keys)
    if layer == "qwen3":
        arrays["self_attn.q_norm.weight"] = _near_one(rng, config.head_dim)
        arrays["self_attn.k_norm.weight"] = _near_one(rng, config.head_dim)
    return {prefix + name: values for name, values in arrays.items()}


def _random_vocabulary(
    rng: np.random.Generator, config: ModelConfig, size: int | None
) -> IntArray | None:
    if size is None:
        return None
    chosen = rng.choice(config.vocab_size, size, replace=False)
    return np.sort(chosen).astype(np.int64)


def _normal(rng: np.random.Generator, *shape: int) -> FloatArray:
    # 1/√n keeps outputs about as large as inputs; the 1.5 makes attention look at some more.
    scale = np.float32(1.5 * shape[-1] ** -0.5)
    return rng.standard_normal(shape, dtype=np.float32) * scale


def _near_one(rng: np.random.Generator, size: int) -> FloatArray:
    return (1 + 0.2 * rng.standard_normal(size)).astype(np.float32)
