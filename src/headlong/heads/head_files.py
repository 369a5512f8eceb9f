"""Head folders: config.json and model.safetensors, read, checked against the backbone, written.

In:  a folder (ours, or one that vLLM, SGLang, EAGLE, Medusa or speculators users have), or a
     backbone's own checkpoint with an MTP head inside.
Out: a `Head` ready to draft, or a `HeadError` that says what does not fit and what to do.
What kind of head it is, is read off the tensors' names, since configs are often copies of others'.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType

from headlong.arrays import IntArray
from headlong.config import HeadQuant
from headlong.errors import CheckpointError, HeadError
from headlong.heads.assistant import build_assistant, read_assistant
from headlong.heads.eagle3 import build_eagle3
from headlong.heads.eagle3_gguf import EAGLE3, read_eagle3_gguf
from headlong.heads.head import Head
from headlong.heads.head_spellings import find_kind, read_vocabulary, respell
from headlong.heads.head_weights import HeadKind, HeadWeights, list_names
from headlong.heads.native_nextn import build_native_nextn, read_native_nextn
from headlong.heads.nextn import build_nextn
from headlong.heads.parallel import build_medusa, build_meta
from headlong.models.gemma4_config import ASSISTANT
from headlong.models.transformer import Backbone
from headlong.weights.checkpoint import (
    Checkpoint,
    count_layers,
    open_checkpoint,
    open_part,
)
from headlong.weights.mapped_file import read_json_object
from headlong.weights.mlx_groups import (
    check_modes,
    describe_groups,
    join_group_scales,
    split_components,
)
from headlong.weights.mtp_names import has_mtp_module
from headlong.weights.safetensors_file import read_safetensors
from headlong.weights.safetensors_writer import Entry, write_safetensors, write_whole
from headlong.weights.tensor_names import canonical_architecture
from headlong.weights.tensors import AffineType, StoredTensor, StoredType

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
MAX_CONFIG_BYTES = 2**22

_GROUPS = "quantization"
"""The key of config.json that says how matrices are packed, as MLX spells it."""

_PICKLED = (".bin", ".pth", ".pt", ".ckpt")
_DTYPES: dict[StoredType, str] = {
    GGMLQuantizationType.F32: "F32",
    GGMLQuantizationType.F16: "F16",
    GGMLQuantizationType.BF16: "BF16",
}
_TORCH_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def load_head(path: Path, backbone: Backbone, quant: HeadQuant = "stored") -> Head:
    """Load a head folder and check it against the backbone it shall draft for."""
    return build_head(read_head_weights(path).packed(quant), backbone)


def read_head_weights(path: Path) -> HeadWeights:
    """Read a head folder, a safetensors file with its config.json beside it, or MTP layers."""
    with _refusing_as_head():
        if (native := _read_mtp_file(path)) is not None:
            return native
        file = path if path.suffix == ".safetensors" else _find_weights(path)
        config = read_json_object(file.parent / CONFIG_FILE, MAX_CONFIG_BYTES)
        check_modes(file.parent, config)
        tensors = join_group_scales(config, read_safetensors(file))
        nested = config.get("transformer_layer_config")  # speculators wraps the layer's sizes
        if isinstance(nested, dict):
            config = nested | {name: value for name, value in config.items() if value is not None}
        kind = find_kind(tensors, config, path)
        tensors = respell(tensors, kind, path)
        vocabulary = read_vocabulary(tensors, config, path)
    return HeadWeights(kind, config, tensors, vocabulary, source=str(path))


def build_head(weights: HeadWeights, backbone: Backbone) -> Head:
    """Build a head on a backbone, or refuse it when it does not fit."""
    builders: dict[HeadKind, Callable[[HeadWeights, Backbone], Head]] = {
        "eagle3": build_eagle3,
        "nextn": build_nextn,
        "medusa": build_medusa,
        "meta": build_meta,
    }
    with _refusing_as_head():
        if weights.kind == "assistant":
            return build_assistant(weights, backbone)
        if weights.checkpoint is not None:
            return build_native_nextn(weights, backbone)
        return builders[weights.kind](weights, backbone)


def find_native_head(
    checkpoint: Checkpoint, backbone: Backbone, quant: HeadQuant = "stored"
) -> Head | None:
    """Build the head inside a backbone's own checkpoint; None when it has none.

    A head that is there but cannot be used is refused, never passed over.
    """
    weights = read_native_head(checkpoint, backbone.config.num_layers)
    return None if weights is None else build_head(weights.packed(quant), backbone)


def read_native_head(checkpoint: Checkpoint, num_layers: int) -> HeadWeights | None:
    """Find the head inside the checkpoint of a backbone of so many layers; None without one."""
    extra = {
        name: tensor
        for name, tensor in checkpoint.tensors.items()
        if name.startswith("extra_heads.")
    }
    if extra:
        return HeadWeights("meta", {}, extra, source=str(checkpoint.path))
    return read_native_nextn(checkpoint, num_layers)


def save_head(path: Path, weights: HeadWeights) -> None:
    """Write a head folder that `load_head` reads; eagle3 heads in floats other engines read too."""
    entries = [one for name, tensor in weights.tensors.items() for one in _entries(name, tensor)]
    entries += vocabulary_entries(weights)
    groups = describe_groups(weights.tensors.values())
    config = {name: value for name, value in weights.config.items() if name != _GROUPS}
    config |= {} if groups is None else {_GROUPS: groups}
    dtypes = {entry.dtype for entry in entries} & _TORCH_DTYPES.keys()
    if len(dtypes) == 1:
        config["torch_dtype"] = _TORCH_DTYPES[dtypes.pop()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        write_safetensors(path / WEIGHTS_FILE, entries)
        write_whole(path / CONFIG_FILE, [f"{json.dumps(config, indent=2)}\n".encode()])
    except OSError as error:
        raise HeadError(
            f"The head cannot be written to {path}: {error}.", "Check the disk and your rights."
        ) from error


@contextmanager
def _refusing_as_head() -> Iterator[None]:
    """Let what is wrong with a head's files or config be a refusal of the head."""
    try:
        yield
    except CheckpointError as error:
        raise HeadError(error.problem, error.remedy) from error


def _read_mtp_file(path: Path) -> HeadWeights | None:
    """Read a model's MTP layers from a file apart; None where it is a head of another kind.

    That is a GGUF file with blocks behind the backbone's last, or a folder with the model's
    config.json and the MTP tensors under the names they have in the model, in a file of their own
    or in shards among others. Or it is an assistant, or an EAGLE-3 head as llama.cpp has it.
    """
    if path.suffix == ".gguf" and path.is_file():
        checkpoint = open_checkpoint(path)
        if checkpoint.architecture == ASSISTANT:
            return read_assistant(checkpoint)
        if checkpoint.architecture == EAGLE3:
            return read_eagle3_gguf(checkpoint)
    else:
        files = _find_parts(path)
        config = read_json_object(files[0].parent / CONFIG_FILE, MAX_CONFIG_BYTES)
        if "nextn" in config or not isinstance(config.get("model_type"), str):
            return None
        if canonical_architecture(config["model_type"]) == ASSISTANT:
            return read_assistant(open_part(*files))
        num_layers = count_layers(config)
        if num_layers is None:
            return None
        files = [one for one in files if has_mtp_module(read_safetensors(one), num_layers)]
        if not files:
            return None
        checkpoint = open_part(*files)
    native = read_native_nextn(checkpoint, checkpoint.num_layers or 0)
    if native is not None and "d2t" in checkpoint.tensors:  # a tuned one
        own: dict[str, Any] = {}
        vocabulary = read_vocabulary(dict(checkpoint.tensors), own, path)
        native = replace(native, config=own, vocabulary=vocabulary)
    if native is None and checkpoint.format == "gguf":
        raise HeadError(
            f"{path} holds no MTP layers.",
            "Give a GGUF file with nextn tensors or of an EAGLE-3 head, or a head folder.",
        )
    return native


def _find_parts(path: Path) -> list[Path]:
    """Return the file named, or what of a model is in a folder: maybe some of its shards."""
    if path.suffix == ".safetensors":
        return [path]
    files = sorted(path.glob("*.safetensors"))
    is_model = len(files) > 1 and (path / CONFIG_FILE).is_file()
    return files if is_model else [_find_weights(path)]


def _find_weights(path: Path) -> Path:
    """Return the one file of a folder that holds the head."""
    if path.is_file():
        raise HeadError(f"{path} is a file.", "Give a head folder, or its safetensors file.")
    if not path.is_dir():
        raise HeadError(f"There is no head at {path}.", "Check the spelling of the path.")
    if (path / WEIGHTS_FILE).is_file():
        return path / WEIGHTS_FILE
    files = sorted(path.glob("*.safetensors"))
    if len(files) == 1:
        return files[0]
    if files:
        names = list_names([file.name for file in files])
        raise HeadError(f"{path} holds several weight files: {names}.", "Give one of them.")
    if any(file.suffix in _PICKLED for file in path.iterdir()):
        raise HeadError(
            f"{path} has its weights in Python's pickle format, which can run any code when read.",
            "Convert the head to safetensors on a machine you can afford to lose.",
        )
    raise HeadError(f"{path} holds no {WEIGHTS_FILE}.", "Give the folder of a head.")


def _entries(name: str, tensor: StoredTensor) -> list[Entry]:
    """Return a tensor as the file holds it: a packed matrix is three."""
    if not isinstance(tensor.type, AffineType):
        return [_entry(name, tensor)]
    words, *scales = split_components(replace(tensor, name=name))
    packed = Entry(name, "U32", words.shape, lambda: [np.ascontiguousarray(words.data).tobytes()])
    return [packed, *(_entry(one.name, one) for one in scales)]


def _entry(name: str, tensor: StoredTensor) -> Entry:
    dtype = _DTYPES.get(tensor.type)
    if dtype is None:
        raise HeadError(
            f"Tensor {name} is stored as {tensor.type.name}.",
            "A head folder holds float32, float16, bfloat16, or matrices in 4 bits.",
        )
    return Entry(name, dtype, tensor.shape, lambda: [np.ascontiguousarray(tensor.data).tobytes()])


def vocabulary_entries(weights: HeadWeights) -> list[Entry]:
    """Return the draft vocabulary as the file holds it."""
    vocabulary = weights.vocabulary
    if vocabulary is None:
        return []
    size = len(vocabulary)
    if weights.kind == "medusa":
        return [_integers("token_map", vocabulary)]
    vocab_size = weights.config.get("vocab_size")
    if not isinstance(vocab_size, int) or not 0 <= int(vocabulary.max()) < vocab_size:
        raise HeadError(
            f"The head's config has vocab_size {vocab_size!r}, its vocabulary goes up to "
            f"{int(vocabulary.max())}.",
            "Give the backbone's vocabulary size in the config.",
        )
    mask = np.zeros(vocab_size, dtype=np.bool_)
    mask[vocabulary] = True
    offsets = _integers("d2t", vocabulary - np.arange(size))
    return [offsets, Entry("t2d", "BOOL", (vocab_size,), lambda: [mask.tobytes()])]


def _integers(name: str, values: IntArray) -> Entry:
    return Entry(name, "I64", values.shape, lambda: [values.astype("<i8").tobytes()])
