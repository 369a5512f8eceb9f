"""A head to measure with when a model has none: right sizes, random weights, 8-bit.

What a draft step costs does not depend on what it drafts, so its price is known before a head is
trained. In: a backbone. Out: an EAGLE-3-format head with a pruned vocabulary.
"""

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from headlong.arrays import FloatArray
from headlong.heads.eagle3 import Eagle3Head, build_eagle3, make_eagle3_config
from headlong.heads.head_weights import HeadWeights
from headlong.models.transformer import Backbone
from headlong.weights.tensors import StoredTensor

DRAFT_VOCAB_SIZE = 16_384


def make_stand_in_head(backbone: Backbone) -> Eagle3Head:
    """Build a random EAGLE-3-format head of the backbone's sizes."""
    config = backbone.config
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    num_drafted = min(DRAFT_VOCAB_SIZE, config.vocab_size)
    matrices = {
        "fc": (hidden, 3 * hidden),
        "midlayer.self_attn.q_proj": (queries, 2 * hidden),
        "midlayer.self_attn.k_proj": (keys, 2 * hidden),
        "midlayer.self_attn.v_proj": (keys, 2 * hidden),
        "midlayer.self_attn.o_proj": (hidden, queries),
        "midlayer.mlp.gate_proj": (inner, hidden),
        "midlayer.mlp.up_proj": (inner, hidden),
        "midlayer.mlp.down_proj": (hidden, inner),
        "lm_head": (num_drafted, hidden),
    }
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    rng = np.random.default_rng(0)
    tensors = {}
    for name, shape in matrices.items():
        values = rng.standard_normal(shape, dtype=np.float32) * np.float32(shape[1] ** -0.5)
        tensors[f"{name}.weight"] = _store(f"{name}.weight", values)
    for name in ("norm", *(f"midlayer.{norm}" for norm in norms)):
        ones: FloatArray = np.ones(hidden, dtype=np.float32)
        data = ones.view(np.uint8).reshape(1, -1)
        tensors[f"{name}.weight"] = StoredTensor(name, (hidden,), GGMLQuantizationType.F32, data)
    vocabulary = np.linspace(0, config.vocab_size - 1, num_drafted).astype(np.int64)
    head_config = make_eagle3_config(config, num_drafted)
    weights = HeadWeights("eagle3", head_config, tensors, vocabulary, "The stand-in head")
    return build_eagle3(weights, backbone)


def _store(name: str, values: FloatArray) -> StoredTensor:
    # Rows that are no whole groups of 32 cannot be 8-bit; tiny test models have such.
    is_whole = values.shape[1] % 32 == 0
    kind = GGMLQuantizationType.Q8_0 if is_whole else GGMLQuantizationType.F32
    data = np.ascontiguousarray(quantize(values, kind)).view(np.uint8).reshape(len(values), -1)
    return StoredTensor(name, values.shape, kind, data)
