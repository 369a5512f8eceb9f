"""What a GGUF file says of the MTP layers it holds.

In:  a model's metadata, its MTP layers. Out: the metadata of a file that holds both, or a refusal
where the layers are of another model.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headlong.errors import HeadError
from headlong.export.mtp_layers import MtpLayers
from headlong.heads.head_weights import HEAD_REMEDY
from headlong.weights.checkpoint import open_checkpoint


def apart_metadata(layers: MtpLayers) -> dict[str, Any]:
    """Return the metadata of a file of its own: the model's, or what can be said of it."""
    if layers.checkpoint.format == "gguf":
        return _without_name(layers.checkpoint.metadata)
    prefix = f"{layers.architecture}."
    metadata: dict[str, Any] = {"general.type": "model", f"{prefix}block_count": layers.num_layers}
    if layers.num_heads is not None:
        metadata[f"{prefix}attention.head_count"] = layers.num_heads
    if layers.num_chosen_experts is not None:
        metadata[f"{prefix}expert_used_count"] = layers.num_chosen_experts
    return metadata_with(metadata, layers)


def metadata_with(metadata: Mapping[str, Any], layers: MtpLayers) -> dict[str, Any]:
    """Return a model's metadata with the layers counted, and lists by layer as long as needed."""
    prefix, count = f"{layers.architecture}.", layers.num_modules
    counted = _without_name(metadata)
    counted[f"{prefix}block_count"] = layers.num_layers + count
    counted[f"{prefix}nextn_predict_layers"] = count
    for name, value in _by_layer(layers, metadata).items():
        values = metadata.get(f"{prefix}{name}")
        if isinstance(values, list) and len(values) == layers.num_layers:
            counted[f"{prefix}{name}"] = [*values, *[value] * count]
    return counted


def check_fit(path: Path, layers: MtpLayers) -> None:
    """Refuse a GGUF file that the layers were not made for, or that has its own."""
    model = open_checkpoint(path)
    told = (model.format, model.architecture, model.num_layers)
    if told != ("gguf", layers.architecture, layers.num_layers):
        raise HeadError(
            f"{path} is a {told[0]} file of architecture {told[1]} with {told[2]} layers; the MTP "
            f"layers are of a model of {layers.architecture} with {layers.num_layers}.",
            HEAD_REMEDY,
        )
    if any(name.startswith(f"blk.{layers.num_layers}.") for name in model.tensors):
        raise HeadError(f"{path} has MTP layers already.", "Use it as it is.")
    embedding = model.tensors.get("token_embd.weight")
    fc = layers.tensors.get(f"blk.{layers.num_layers}.nextn.eh_proj.weight")
    if embedding is None or fc is None or fc.shape[0] != embedding.shape[-1]:
        sizes = [None if one is None else list(one.shape) for one in (embedding, fc)]
        raise HeadError(
            f"{path} has the embedding {sizes[0]}, the MTP layers have the projection {sizes[1]}.",
            HEAD_REMEDY,
        )


def _by_layer(layers: MtpLayers, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return what lists by layer say of the MTP layers, which attend."""
    prefix, block = f"{layers.architecture}.", f"blk.{layers.num_layers}."
    key_length = metadata.get(f"{prefix}attention.key_length")
    keys, inner = (layers.tensors.get(f"{block}{n}.weight") for n in ("attn_k", "ffn_up"))
    values: dict[str, Any] = {
        "attention.recurrent_layers": False,
        "attention.sliding_window_pattern": 1,  # MiMo-V2's look back as far as its windows
        "feed_forward_length": metadata.get(f"{prefix}expert_feed_forward_length", 0),
    }
    if inner is not None:
        values["feed_forward_length"] = inner.shape[0]
    if keys is not None and isinstance(key_length, int) and key_length > 0:
        values["attention.head_count_kv"] = keys.shape[0] // key_length
    return values


def _without_name(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what the writer adds itself."""
    return {key: value for key, value in metadata.items() if key != "general.architecture"}
