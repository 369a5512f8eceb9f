"""The backbone a head was trained on, as the GGUF file that llama.cpp loads.

In:  a model's checkpoint.
Out: the model's own GGUF file, copied; or, where a type of float is asked for or the model is a
Hugging Face folder, a new one with the same numbers.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType

from headlong.errors import ArchitectureError, CheckpointError
from headlong.export.backbone_config import hugging_face_names
from headlong.export.backbone_folder import copy_file, counter
from headlong.export.conversion import Conversion
from headlong.export.gguf_tokens import describe_tokens
from headlong.heads.eagle3 import ROPE_DIVISORS
from headlong.heads.head_weights import FLOAT_TYPES, store_array
from headlong.models.model_config import ModelConfig, read_config
from headlong.models.rope import make_rope
from headlong.weights.checkpoint import Checkpoint, open_checkpoint
from headlong.weights.gguf_file import read_gguf
from headlong.weights.gguf_writer import FILE_TYPES, GgufEntry, write_gguf
from headlong.weights.layout import interleaved
from headlong.weights.progress import Progress
from headlong.weights.tensors import StoredTensor


def copy_backbone_gguf(path: Path, checkpoint: Checkpoint, progress: Progress) -> None:
    """Copy a model's GGUF file as it is quantised."""
    copy_file(checkpoint.path, path, counter(progress, checkpoint.path.stat().st_size))


def write_backbone_gguf(
    path: Path, checkpoint: Checkpoint, conversion: Conversion, progress: Progress
) -> None:
    """Write a model with its matrices in one type of float, and open the file again."""
    if checkpoint.format == "gguf":
        raw = read_gguf(checkpoint.path)  # rows as such files have them
        metadata, tensors = dict(raw.metadata), raw.tensors
        del metadata["general.architecture"]  # written first, whatever else there is
    else:
        config = read_config(checkpoint)
        metadata = {**_metadata(checkpoint, config), **describe_tokens(checkpoint)}
        tensors = dict(_laid_out(checkpoint, config))
    kind = FLOAT_TYPES[conversion.float_type]
    metadata["general.file_type"] = FILE_TYPES[kind]
    total = sum(_stored_bytes(tensor, kind) for tensor in tensors.values())
    counted = counter(progress, total)
    entries = [
        GgufEntry(
            name,
            tensor.shape,
            _stored_type(tensor, kind),
            partial(_converted, tensor, conversion, counted),
        )
        for name, tensor in tensors.items()
    ]
    write_gguf(path, checkpoint.architecture, metadata, entries)
    written = open_checkpoint(path).tensors
    if {n: t.shape for n, t in written.items()} != {n: t.shape for n, t in tensors.items()}:
        raise CheckpointError(
            f"{path} does not read back as it was written.", "Check the disk, and export again."
        )


def gguf_bytes(checkpoint: Checkpoint, conversion: Conversion) -> int:
    """Return how many bytes the weights of such a file take."""
    kind = FLOAT_TYPES[conversion.float_type]
    return sum(_stored_bytes(tensor, kind) for tensor in checkpoint.tensors.values())


def _stored_type(tensor: StoredTensor, of_matrices: GGMLQuantizationType) -> GGMLQuantizationType:
    """Return what a tensor is stored as; llama.cpp wants vectors in float32."""
    return of_matrices if len(tensor.shape) > 1 else GGMLQuantizationType.F32


def _stored_bytes(tensor: StoredTensor, of_matrices: GGMLQuantizationType) -> int:
    width = 4 if _stored_type(tensor, of_matrices) == GGMLQuantizationType.F32 else 2
    return width * prod(tensor.shape)


def tokenizer_metadata(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return what a GGUF file says of the model's tokens; a head's file must say the same."""
    if checkpoint.format != "gguf":
        return describe_tokens(checkpoint)
    metadata = checkpoint.metadata
    return {key: value for key, value in metadata.items() if key.startswith("tokenizer.")}


def _converted(
    tensor: StoredTensor, conversion: Conversion, counted: Callable[[int], None]
) -> StoredTensor:
    change = conversion if len(tensor.shape) > 1 else Conversion("float32")
    made = change.apply(tensor)
    counted(made.num_bytes)
    return made


def _metadata(checkpoint: Checkpoint, config: ModelConfig) -> Mapping[str, Any]:
    """Return the keys of a model that comes as a Hugging Face folder."""
    scaling = config.rope_scaling
    if config.local_layers or (scaling is not None and scaling.kind == "yarn"):
        fault = "sliding windows" if config.local_layers else "positions stretched by YaRN"
        raise ArchitectureError(
            f"{checkpoint.path} has {fault}, which are not written as GGUF here.",
            "Convert it with llama.cpp's convert_hf_to_gguf.py, and name that file with --model.",
        )
    keys = {
        "block_count": config.num_layers,
        "context_length": config.context_length,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.norm_eps,
        "rope.dimension_count": config.head_dim,
        "rope.freq_base": config.rope_theta,
        "vocab_size": config.vocab_size,
    }
    general = {"general.type": "model", "general.name": checkpoint.path.name}
    return general | {f"{checkpoint.architecture}.{key}": value for key, value in keys.items()}


def _laid_out(checkpoint: Checkpoint, config: ModelConfig) -> Iterator[tuple[str, StoredTensor]]:
    """Yield a folder's tensors as GGUF files have them; refuse what they have no place for."""
    heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}
    for name in hugging_face_names(checkpoint, config.num_layers):
        tensor = checkpoint.tensors[name]
        num_heads = heads.get(name.split(".")[-2]) if checkpoint.architecture == "llama" else None
        yield name, tensor if num_heads is None else interleaved(tensor, num_heads)
    if config.rope_scaling is not None:
        plain, stretched = (
            make_rope(config.head_dim, config.rope_theta, scaling).frequencies
            for scaling in (None, config.rope_scaling)
        )
        yield ROPE_DIVISORS, store_array(ROPE_DIVISORS, plain / stretched)
