"""Qwen2, Qwen2.5 and MiMo-7B: Llama with biases on query, key and value.

Llama's builder takes biases along where a file has them; here they must be there.
"""

from collections.abc import Iterable

from headlong.errors import TensorError
from headlong.models import llama
from headlong.models.model_config import ModelConfig
from headlong.models.transformer import Backbone
from headlong.ops.blocks import Layer
from headlong.ops.op_set import Ops
from headlong.weights.weight_reader import WeightReader


def build(config: ModelConfig, weights: WeightReader, ops: Ops) -> Backbone:
    """Build a Qwen2 backbone from a checkpoint's tensors."""
    _check_biases(config, weights, range(config.num_layers))
    return llama.build_frame(config, weights, ops, layer_builder(config, weights))


def layer_builder(config: ModelConfig, weights: WeightReader) -> llama.LayerBuilder:
    """Return what builds one layer; refuse one without its biases."""
    build_plain = llama.layer_builder(config, weights)

    def build_layer(index: int) -> Layer:
        _check_biases(config, weights, [index])
        return build_plain(index)

    return build_layer


def _check_biases(config: ModelConfig, weights: WeightReader, indices: Iterable[int]) -> None:
    names = [f"blk.{index}.attn_{part}.bias" for index in indices for part in "qkv"]
    missing = [name for name in names if not weights.has(name)]
    if missing:
        raise TensorError(
            f"A {config.architecture} model needs biases on query, key and value; missing: "
            f"{', '.join(missing)}.",
            "The file was converted incompletely; pull the model again or use another copy.",
        )
