"""Qwen2, Qwen2.5 and MiMo-7B: Llama with biases on query, key and value.

Llama's builder takes biases along where a file has them; here they must be there.
"""

from headlong.errors import TensorError
from headlong.models import llama
from headlong.models.model_config import ModelConfig
from headlong.models.transformer import Backbone
from headlong.ops.op_set import Ops
from headlong.weights.ledger import WeightReader


def build(config: ModelConfig, weights: WeightReader, ops: Ops) -> Backbone:
    """Build a Qwen2 backbone from a checkpoint's tensors."""
    return llama.build_frame(config, weights, ops, layer_builder(config, weights))


def layer_builder(config: ModelConfig, weights: WeightReader) -> llama.LayerBuilder:
    """Return what builds one layer; refuse a file without the biases of its layers."""
    names = [
        f"blk.{index}.attn_{part}.bias" for index in range(config.num_layers) for part in "qkv"
    ]
    missing = [name for name in names if not weights.has(name)]
    if missing:
        raise TensorError(
            f"A {config.architecture} model needs biases on query, key and value; missing: "
            f"{', '.join(missing)}.",
            "The file was converted incompletely; pull the model again or use another copy.",
        )
    return llama.layer_builder(config, weights)
