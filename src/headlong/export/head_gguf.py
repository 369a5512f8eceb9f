"""An EAGLE-3 head as the GGUF file that llama.cpp loads.

In:  a `HeadSource`, and the tokenizer as GGUF metadata. Out: a file of the architecture `eagle3`.
llama.cpp wants norms in float32, query and key rows interleaved, and draft ids as ids of the model.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType

from headlong.arrays import IntArray
from headlong.errors import HeadError
from headlong.export.conversion import Conversion
from headlong.export.head_source import HeadSource
from headlong.heads.eagle3 import ROPE_DIVISORS
from headlong.heads.eagle3_gguf import DRAFT_IDS, EAGLE3, name_in_gguf
from headlong.heads.head_weights import FLOAT_TYPES, QUANT_KEY, store_array
from headlong.models.rope import make_rope
from headlong.weights.gguf_writer import FILE_TYPES, GgufEntry, write_gguf
from headlong.weights.layout import interleaved
from headlong.weights.tensors import StoredTensor


def write_head_gguf(
    path: Path, source: HeadSource, conversion: Conversion, tokenizer: Mapping[str, Any]
) -> dict[str, StoredTensor]:
    """Write the file; return what it holds, named and laid out as in folders."""
    whole = Conversion("float32")
    tensors = {
        name: (conversion if len(tensor.shape) > 1 else whole).apply(tensor)
        for name, tensor in source.weights.tensors.items()
    }
    tensors |= _rope_divisors(source)
    config = source.weights.config
    heads = {
        "q_proj": config["num_attention_heads"],
        "k_proj": config["num_key_value_heads"],
    }
    entries = []
    for name, tensor in tensors.items():
        num_heads = heads.get(name.split(".")[-2])
        stored = tensor if num_heads is None else interleaved(tensor, num_heads)
        entries.append(_entry(name_in_gguf(name), stored))
    if source.weights.vocabulary is not None:
        entries.append(_entry(DRAFT_IDS, _draft_ids(source.weights.vocabulary)))
    write_gguf(path, EAGLE3, {**_metadata(source, conversion), **tokenizer}, entries)
    return tensors


def _entry(name: str, tensor: StoredTensor) -> GgufEntry:
    assert isinstance(tensor.type, GGMLQuantizationType), "conversions know no other types"
    return GgufEntry(name, tensor.shape, tensor.type, lambda: tensor)


def _draft_ids(vocabulary: IntArray) -> StoredTensor:
    data = vocabulary.astype("<i8").view(np.uint8).reshape(1, -1)
    return StoredTensor(DRAFT_IDS, vocabulary.shape, GGMLQuantizationType.I64, data)


def _metadata(source: HeadSource, conversion: Conversion) -> dict[str, Any]:
    config = source.weights.config
    keys = {
        "block_count": 1,
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.dimension_count": config["head_dim"],
        "rope.freq_base": float(config["rope_theta"]),
        "vocab_size": config["vocab_size"],
        "target_layers": list(source.tap_layers),
        "target_hidden_size": config["target_hidden_size"],
        "norm_before_residual": config["norm_before_residual"],
        "norm_before_fc": config["norm_before_fc"],
    }
    general = {
        "general.type": "model",
        "general.name": "EAGLE-3 head",
        "general.file_type": FILE_TYPES[FLOAT_TYPES[conversion.float_type]],
    }
    if QUANT_KEY in config:
        keys[QUANT_KEY] = config[QUANT_KEY]
    return general | {f"{EAGLE3}.{name}": value for name, value in keys.items()}


def _rope_divisors(source: HeadSource) -> dict[str, StoredTensor]:
    """Return what divides rotary frequencies, where the head's are stretched."""
    config, rope = source.weights.config, source.head.layer.attention.rope
    plain = make_rope(config["head_dim"], config["rope_theta"])
    if rope.amplitude != 1.0:
        raise HeadError(
            f"{source.weights.source} stretches its positions by YaRN.",
            "Such heads are not written for llama.cpp; export it to vLLM or SGLang.",
        )
    divisors = plain.frequencies / rope.frequencies
    if np.array_equal(divisors, np.ones_like(divisors)):
        return {}
    return {ROPE_DIVISORS: store_array(ROPE_DIVISORS, divisors)}
