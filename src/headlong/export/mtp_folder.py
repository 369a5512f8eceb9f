"""MTP layers as a folder: config.json and safetensors under the family's own names.

In:  the MTP layers of a model, as its file has them or as training has left them.
Out: a folder that `--head` takes; with the draft vocabulary of layers that were tuned.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType

from headlong.export.conversion import Conversion
from headlong.export.mtp_layers import MtpLayers, check_family, entries_as
from headlong.heads.head_files import CONFIG_FILE, WEIGHTS_FILE, vocabulary_entries
from headlong.heads.head_weights import FLOAT_TYPES, HeadWeights
from headlong.weights.gguf_writer import GgufEntry
from headlong.weights.mtp_spellings import SPELLINGS
from headlong.weights.safetensors_writer import Entry, write_safetensors

_DTYPES = {
    GGMLQuantizationType.F32: "F32",
    GGMLQuantizationType.F16: "F16",
    GGMLQuantizationType.BF16: "BF16",
}


def save_mtp_layers(folder: Path, weights: HeadWeights) -> None:
    """Write the MTP layers of a head that was built of a checkpoint, types as they are."""
    checkpoint = weights.checkpoint
    assert checkpoint is not None
    check_family(checkpoint)
    assert checkpoint.num_layers is not None
    layers = MtpLayers(checkpoint, checkpoint.num_layers, weights.tensors)
    conversions = {name: Conversion(name) for name in FLOAT_TYPES}
    entries = entries_as(layers, "safetensors", None, conversions)
    folder.mkdir(parents=True, exist_ok=True)
    write_mtp_folder(folder, layers, entries, vocabulary_entries(weights))


def write_mtp_folder(
    folder: Path, layers: MtpLayers, entries: Iterable[GgufEntry], more: Sequence[Entry] = ()
) -> None:
    """Write layers into a folder, with further tensors that belong to them."""
    (folder / CONFIG_FILE).write_text(json.dumps(_config(layers), indent=2) + "\n", "utf-8")
    write_safetensors(
        folder / WEIGHTS_FILE,
        [
            Entry(entry.name, _DTYPES[entry.type], entry.shape, partial(_bytes_of, entry))
            for entry in entries
        ]
        + list(more),
    )


def _bytes_of(entry: GgufEntry) -> Iterator[bytes]:
    yield np.ascontiguousarray(entry.make().data).tobytes()


def _config(layers: MtpLayers) -> dict[str, Any]:
    """Return the model's config.json, or what can be said of it."""
    if layers.checkpoint.format == "safetensors":
        return dict(layers.checkpoint.metadata)
    spelling, sizes = SPELLINGS[layers.architecture], layers.head_sizes
    config: dict[str, Any] = {
        "model_type": spelling.model_type,
        "num_hidden_layers": layers.num_layers,
        spelling.count_key: layers.num_modules,
    }
    if layers.num_heads is not None:
        config["num_attention_heads"] = layers.num_heads
    if sizes is not None:
        config["qk_nope_head_dim"] = sizes.plain_dim
    if layers.num_chosen_experts is not None:
        config["num_experts_per_tok"] = layers.num_chosen_experts
    return config
