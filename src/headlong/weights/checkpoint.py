"""Checkpoints: one way to open every kind of model file.

In:  the path of a GGUF file, or of a Hugging Face folder (config.json with safetensors beside it).
Out: a `Checkpoint` whose tensors have canonical names and one layout, whatever they came from.
Does not know which tensors a model needs; `weight_reader` does. Pickled weights are refused,
since unpickling runs whatever code the file carries.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from headlong.errors import CheckpointError, TensorError
from headlong.weights.block_scales import join_block_scales
from headlong.weights.gguf_file import read_gguf
from headlong.weights.layout import unify_gguf, unify_safetensors
from headlong.weights.mapped_file import DOWNLOAD_AGAIN, map_file, read_json_object, shown
from headlong.weights.mlx_groups import check_modes, join_group_scales
from headlong.weights.safetensors_file import read_safetensors
from headlong.weights.tensor_names import canonical_architecture, canonical_names
from headlong.weights.tensors import StoredTensor

MAX_CONFIG_BYTES = 2**22
MAX_INDEX_BYTES = 2**24
MAX_SHARDS = 4096

_CONFIG = "config.json"
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"[A-Za-z0-9._+-]{1,200}\.safetensors")
_PICKLED = (".bin", ".pth", ".pt", ".ckpt")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model as it lies on disk, in the one layout that the packages above expect."""

    path: Path
    """The GGUF file or the Hugging Face folder."""
    format: Literal["gguf", "safetensors"]
    architecture: str
    """GGUF's name for it: llama, qwen2, qwen3, gemma3, …; unknown ones as the file says."""
    metadata: Mapping[str, Any]
    """GGUF key/values as plain Python values, or config.json's contents."""
    tensors: Mapping[str, StoredTensor]
    """By canonical name; a tensor without one keeps its own."""
    num_layers: int | None = None
    """Layers of the backbone; blocks behind them are MTP modules. None where it is not said."""


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a GGUF file or a Hugging Face folder without reading its weights."""
    try:
        return _open_folder(path) if path.is_dir() else _open_file(path)
    except OSError as error:
        problem = f"{path} cannot be read: {error}."
        raise CheckpointError(problem, "Check that you may read it and all it holds.") from error


def open_part(*files: Path) -> Checkpoint:
    """Open some safetensors files of a folder with its config.json, whatever else there is."""
    tensors = {name: one for file in files for name, one in read_safetensors(file).items()}
    return _open_folder(files[0].parent, tensors)


def _open_file(path: Path) -> Checkpoint:
    is_gguf = map_file(path)[:4].tobytes() == b"GGUF"  # whatever the file is called
    if path.suffix == ".safetensors" and not is_gguf:
        return _open_beside_config(path)
    if path.suffix in _PICKLED and not is_gguf:
        raise _pickled(path)
    contents = read_gguf(path)
    architecture = contents.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        problem = f"{path}: general.architecture is {shown(architecture)}, not a name."
        raise CheckpointError(problem, DOWNLOAD_AGAIN)
    try:
        tensors = unify_gguf(architecture, contents.metadata, contents.tensors)
    except CheckpointError as error:
        raise type(error)(f"{path}: {error.problem}", error.remedy) from error
    keys = (f"{architecture}.block_count", f"{architecture}.nextn_predict_layers")
    num_blocks, num_modules = (contents.metadata.get(key, 0) for key in keys)
    is_said = type(num_blocks) is int and type(num_modules) is int and num_blocks > num_modules
    num_layers = num_blocks - num_modules if is_said else None
    return Checkpoint(path, "gguf", architecture, contents.metadata, tensors, num_layers)


def _open_beside_config(path: Path) -> Checkpoint:
    folder = path.parent
    if not (folder / _CONFIG).is_file():
        raise CheckpointError(
            f"{path} has no {_CONFIG} beside it, which says what model it is.",
            "Give the model's whole folder; a head is given as a head, not as a model.",
        )
    files = [file.name for file in _weight_files(folder, _weight_map(folder))]
    if path.name not in files:
        raise CheckpointError(
            f"{path} is not one of the files that make up the model in {folder}: {shown(files)}.",
            "Give the folder to open the model.",
        )
    return _open_folder(folder)


def _open_folder(folder: Path, tensors: Mapping[str, StoredTensor] | None = None) -> Checkpoint:
    config_path = folder / _CONFIG
    if not config_path.is_file():
        ggufs = sorted(file.name for file in folder.glob("*.gguf"))
        hint = f"Name one of its GGUF files: {shown(ggufs)}." if ggufs else "Check the path."
        problem = f"The folder {folder} holds no {_CONFIG}, so it is no Hugging Face model."
        raise CheckpointError(problem, hint)
    config = read_json_object(config_path, MAX_CONFIG_BYTES)
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        problem = f"{config_path}: model_type is {shown(model_type)}, not a name."
        raise CheckpointError(problem, "Put the model's own config.json in its place.")
    architecture = canonical_architecture(model_type, has_experts="num_experts_per_tok" in config)
    check_modes(folder, config)
    if tensors is None:
        tensors = _read_folder_tensors(folder)
    num_layers = count_layers(config)
    try:
        tensors = join_group_scales(config, join_block_scales(config, tensors))
        names = canonical_names(architecture, tensors, num_layers)
        named = {names[own]: replace(tensors[own], name=names[own]) for own in tensors}
        unified = unify_safetensors(architecture, named)
    except CheckpointError as error:
        raise type(error)(f"{folder}: {error.problem}", error.remedy) from error
    return Checkpoint(folder, "safetensors", architecture, config, unified, num_layers)


def count_layers(config: Mapping[str, Any]) -> int | None:
    """Return how many layers the backbone has, to separate MTP tensors from its own."""
    nested = config.get("text_config")
    text = nested if isinstance(nested, dict) else config
    kinds = text.get("layers_block_type")  # all that transformers 5 saves of Nemotron's layers
    count = text.get("num_hidden_layers", len(kinds) if isinstance(kinds, list) else None)
    return count if type(count) is int and count >= 0 else None


def _read_folder_tensors(folder: Path) -> dict[str, StoredTensor]:
    weight_map = _weight_map(folder)
    tensors: dict[str, StoredTensor] = {}
    owners: dict[str, str] = {}
    for file in _weight_files(folder, weight_map):
        for name, tensor in read_safetensors(file).items():
            if name in owners:
                problem = f"{folder}: {owners[name]} and {file.name} both hold {shown(name)}."
                raise TensorError(problem, DOWNLOAD_AGAIN)
            owners[name] = file.name
            tensors[name] = tensor
    absent = [name for name, shard in weight_map.items() if owners.get(name) != shard]
    if absent:
        problem = f"{folder}: {len(absent)} tensors of the index are not where it says:"
        first = f"{shown(absent[0])} is not in {weight_map[absent[0]]}"
        raise TensorError(f"{problem} {first}.", DOWNLOAD_AGAIN)
    return tensors


def _weight_files(folder: Path, weight_map: dict[str, str]) -> list[Path]:
    """Return the safetensors files that make up the model of a folder."""
    if weight_map:
        shards = [folder / shard for shard in sorted(set(weight_map.values()))]
        missing = [shard.name for shard in shards if not shard.is_file()]
        if missing:
            problem = f"{folder} lacks {len(missing)} of {len(shards)} shards: {shown(missing)}."
            raise CheckpointError(problem, "Download the missing files into that folder.")
        return shards
    if (folder / _SINGLE).is_file():
        return [folder / _SINGLE]
    if any(file.suffix in _PICKLED for file in folder.iterdir()):
        raise _pickled(folder)
    problem = f"The folder {folder} holds neither {_SINGLE} nor {_INDEX}."
    raise CheckpointError(problem, "Download the model's weights into it.")


def _weight_map(folder: Path) -> dict[str, str]:
    """Read which tensor lies in which shard; empty where the folder has no index."""
    path = folder / _INDEX
    if not path.is_file():
        return {}
    weight_map = read_json_object(path, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        problem = f"{path}: weight_map is {shown(weight_map)}, not a list of tensors and files."
        raise CheckpointError(problem, DOWNLOAD_AGAIN)
    for shard in weight_map.values():
        # A path would let an index read files outside the model's folder.
        if not isinstance(shard, str) or not _SHARD.fullmatch(shard):
            problem = f"{path} names {shown(shard)} as a shard, which is no safetensors file name."
            raise CheckpointError(problem, "Do not use this model unless you trust its maker.")
    num_shards = len(set(weight_map.values()))
    if num_shards > MAX_SHARDS:
        problem = f"{path} names {num_shards} shards; {MAX_SHARDS} is the limit."
        raise CheckpointError(problem, DOWNLOAD_AGAIN)
    return weight_map


def _pickled(path: Path) -> CheckpointError:
    return CheckpointError(
        f"{path} has its weights in Python's pickle format, which can run any code when read.",
        "Get the model as safetensors or GGUF; most publishers offer one of them.",
    )
