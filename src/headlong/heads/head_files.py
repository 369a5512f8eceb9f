"""Head folders: config.json and model.safetensors, read, checked against the backbone, written.

In:  a folder (ours, or one that vLLM, SGLang, EAGLE, Medusa or speculators users have), or a
     backbone's own checkpoint with an MTP head inside.
Out: a `Head` ready to draft, or a `HeadError` that says what does not fit and what to do.
What kind of head it is, is read off the tensors' names, since configs are often copies of others'.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType

from headlong.arrays import IntArray
from headlong.config import HeadQuant
from headlong.errors import CheckpointError, HeadError
from headlong.heads.assistant import build_assistant, read_assistant
from headlong.heads.eagle3 import LAYER, build_eagle3
from headlong.heads.head import Head
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
from headlong.weights.mapped_file import read_json_object, shown
from headlong.weights.mtp_names import has_mtp_module
from headlong.weights.safetensors_file import read_safetensors
from headlong.weights.safetensors_writer import Entry, write_safetensors, write_whole
from headlong.weights.tensor_names import canonical_architecture
from headlong.weights.tensors import StoredTensor, StoredType

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
MAX_CONFIG_BYTES = 2**22

_PICKLED = (".bin", ".pth", ".pt", ".ckpt")
_DTYPES: dict[StoredType, str] = {
    GGMLQuantizationType.F32: "F32",
    GGMLQuantizationType.F16: "F16",
    GGMLQuantizationType.BF16: "BF16",
}
_TORCH_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}

_EAGLE3_NAME = re.compile(r"(?:model\.)?(?:midlayer\.|layers\.0\.hidden_norm\.).+")
# Medusa's own spelling: head, then block, then the LM head as one more unnamed block.
_MEDUSA_NAME = re.compile(
    r"(?:medusa_heads?\.)?(?P<head>\d{1,4})\.(?P<block>\d{1,4})\.(?P<linear>linear\.)?(?P<part>weight|bias)"
)


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
        tensors = read_safetensors(file)
        nested = config.get("transformer_layer_config")  # speculators wraps the layer's sizes
        if isinstance(nested, dict):
            config = {**nested, **config}
        kind = _find_kind(tensors, config, path)
        tensors = _respell(tensors, kind, path)
        vocabulary = _read_vocabulary(tensors, config, path)
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
    """Write a head folder that `load_head` reads; eagle3 heads other engines read too."""
    entries = [_entry(name, tensor) for name, tensor in weights.tensors.items()]
    entries += _vocabulary_entries(weights)
    config = dict(weights.config)
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
    config.json and the MTP tensors under the names they have in the model. Or it is an assistant.
    """
    if path.suffix == ".gguf" and path.is_file():
        checkpoint = open_checkpoint(path)
        if checkpoint.architecture == ASSISTANT:
            return read_assistant(checkpoint)
    else:
        file = path if path.suffix == ".safetensors" else _find_weights(path)
        config = read_json_object(file.parent / CONFIG_FILE, MAX_CONFIG_BYTES)
        if "nextn" in config or not isinstance(config.get("model_type"), str):
            return None
        if canonical_architecture(config["model_type"]) == ASSISTANT:
            return read_assistant(open_part(file))
        num_layers = count_layers(config)
        if num_layers is None or not has_mtp_module(read_safetensors(file), num_layers):
            return None
        checkpoint = open_part(file)
    native = read_native_nextn(checkpoint, checkpoint.num_layers or 0)
    if native is None and checkpoint.format == "gguf":
        raise HeadError(
            f"{path} holds no MTP layers.", "Give a GGUF file with nextn tensors, or a head folder."
        )
    return native


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


def _find_kind(
    tensors: Mapping[str, StoredTensor], config: Mapping[str, Any], path: Path
) -> HeadKind:
    """Tell heads apart by the names of their tensors."""
    named_eagle3 = "eagle3" in str(config.get("architectures")).lower()
    if named_eagle3 or any(map(_EAGLE3_NAME.fullmatch, tensors)):
        return "eagle3"
    if any(name.startswith("extra_heads.") for name in tensors):
        return "meta"
    if any(_MEDUSA_NAME.fullmatch(name) or name.startswith("lm_heads.") for name in tensors):
        return "medusa"
    if "nextn" in config:
        return "nextn"
    if {"fc.weight", "layers.0.self_attn.q_proj.weight"} <= tensors.keys():
        raise HeadError(
            f"{path} holds an EAGLE-1 head (fc and one layer without norms).",
            "Heads in EAGLE-3 format are read here; use one of those.",
        )
    raise HeadError(
        f"{path} holds no known head; its tensors are {list_names(sorted(tensors))}.",
        "Known are EAGLE-3, nextn (MTP layers), Medusa and Meta heads.",
    )


def _respell(
    tensors: Mapping[str, StoredTensor], kind: HeadKind, path: Path
) -> dict[str, StoredTensor]:
    """Bring the spellings other projects use to one; refuse a tensor given under two of them."""
    if kind == "eagle3":
        names = {
            name: re.sub(r"^layers\.0\.", LAYER, name.removeprefix("model.")) for name in tensors
        }
    elif kind == "medusa":
        names = _medusa_names(tensors)
    else:
        names = {name: name for name in tensors}
    respelled = {names[name]: tensor for name, tensor in tensors.items()}
    if len(respelled) < len(tensors):
        twice = [name for name in respelled if list(names.values()).count(name) > 1]
        raise HeadError(
            f"{path} gives {list_names(twice)} more than once, under different spellings.",
            "Remove one of them.",
        )
    return respelled


def _medusa_names(tensors: Mapping[str, StoredTensor]) -> dict[str, str]:
    names: dict[str, str] = {}
    for name in tensors:
        match = _MEDUSA_NAME.fullmatch(name)
        if match is None:
            names[name] = name
        elif match["linear"]:
            names[name] = f"blocks.{match['head']}.layers.{match['block']}.{match['part']}"
        else:
            names[name] = f"lm_heads.{match['head']}.{match['part']}"
    return names


def _read_vocabulary(
    tensors: dict[str, StoredTensor], config: dict[str, Any], path: Path
) -> IntArray | None:
    """Take the draft vocabulary out of a head's tensors, as backbone ids; None for all tokens."""
    token_map, d2t, t2d = (tensors.pop(name, None) for name in ("token_map", "d2t", "t2d"))
    if token_map is not None:
        return token_map.to_int64().reshape(-1)
    if d2t is None:
        if t2d is not None:
            raise HeadError(f"{path} has t2d but no d2t.", "Export the head again in full.")
        return None
    offsets = d2t.to_int64().reshape(-1)
    vocabulary: IntArray = np.arange(len(offsets), dtype=np.int64) + offsets
    if t2d is not None:
        mask = t2d.to_int64().reshape(-1)
        # The mask is as long as the vocabulary of the backbone that the head was made for.
        if config.setdefault("vocab_size", len(mask)) != len(mask):
            raise HeadError(
                f"{path}: t2d covers {len(mask)} tokens, config.json says "
                f"{shown(config['vocab_size'])}.",
                "Its files belong to different heads; export the head again.",
            )
        if not np.array_equal(np.flatnonzero(mask), np.sort(vocabulary)):
            raise HeadError(f"{path}: d2t and t2d name different tokens.", "Export the head again.")
    return vocabulary


def _entry(name: str, tensor: StoredTensor) -> Entry:
    dtype = _DTYPES.get(tensor.type)
    if dtype is None:
        raise HeadError(
            f"Tensor {name} is stored as {tensor.type.name}.",
            "A head folder holds float32, float16 or bfloat16.",
        )
    return Entry(name, dtype, tensor.shape, lambda: [np.ascontiguousarray(tensor.data).tobytes()])


def _vocabulary_entries(weights: HeadWeights) -> list[Entry]:
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
