"""The backbone a head was trained on, as a Hugging Face folder.

In:  a model's checkpoint. Out: config, safetensors, tokenizer, chat template, generation config.
A GGUF file is unpacked, its rows put in Hugging Face's order by the checkpoint already; a folder is
copied. Either way the copy is opened and held against the original before it counts.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from headlong.errors import CheckpointError
from headlong.export.backbone_config import hugging_face_config, hugging_face_names
from headlong.export.conversion import Conversion
from headlong.export.tokenizer_files import check_tokenizer, write_tokenizer
from headlong.models.model_config import ModelConfig, read_config
from headlong.text.gguf_vocabulary import read_gguf_vocabulary
from headlong.text.tokenizer import load_tokenizer
from headlong.weights.checkpoint import Checkpoint, open_checkpoint
from headlong.weights.progress import Progress
from headlong.weights.safetensors_writer import Entry, write_safetensors
from headlong.weights.store import hash_file
from headlong.weights.tensors import StoredTensor

MAX_SHARD_BYTES = 4 * 2**30
_CHUNK_BYTES = 2**22
_DTYPES = {"float32": ("F32", 4), "float16": ("F16", 2), "bfloat16": ("BF16", 2)}
_COPIED = (".json", ".jinja", ".txt", ".model", ".safetensors")


def write_backbone_folder(
    folder: Path, checkpoint: Checkpoint, conversion: Conversion, progress: Progress
) -> None:
    """Write a model's folder and check it."""
    folder.mkdir()
    if checkpoint.format == "gguf":
        _unpack(folder, checkpoint, conversion, progress)
    else:
        _copy(folder, checkpoint.path, progress)
        check_tokenizer(load_tokenizer(checkpoint), load_tokenizer(open_checkpoint(folder)))


def folder_bytes(checkpoint: Checkpoint, conversion: Conversion) -> int:
    """Return how many bytes the weights of the folder will take."""
    if checkpoint.format == "gguf":
        width = _DTYPES[conversion.float_type][1]
        return sum(math.prod(tensor.shape) * width for tensor in checkpoint.tensors.values())
    return sum(file.stat().st_size for file in _files(checkpoint.path))


def _unpack(
    folder: Path, checkpoint: Checkpoint, conversion: Conversion, progress: Progress
) -> None:
    config = read_config(checkpoint)
    vocabulary = read_gguf_vocabulary(checkpoint.metadata)
    written = hugging_face_config(checkpoint, vocabulary, conversion.float_type)
    (folder / "config.json").write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
    write_tokenizer(folder, vocabulary, written)
    names = hugging_face_names(checkpoint, config.num_layers)
    counted = counter(progress, folder_bytes(checkpoint, conversion))
    dtype = _DTYPES[conversion.float_type][0]
    entries = [
        Entry(names[name], dtype, tensor.shape, partial(_bytes_of, tensor, conversion, counted))
        for name, tensor in checkpoint.tensors.items()
        if name in names
    ]
    _write_shards(folder, entries)
    copy = open_checkpoint(folder)
    shapes = {name: tensor.shape for name, tensor in copy.tensors.items()}
    is_whole = shapes == {name: checkpoint.tensors[name].shape for name in names}
    if not is_whole or _essence(read_config(copy)) != _essence(config):
        raise CheckpointError(
            f"{folder} does not read back as it was written.", "Check the disk, and export again."
        )


def _essence(config: ModelConfig) -> ModelConfig:
    """Return what both formats say alike; a window that no layer looks through says nothing.

    How positions are stretched was compared when the config was made.
    """
    window = config.sliding_window if config.local_layers else None
    return replace(config, rope_scaling=None, sliding_window=window)


def _bytes_of(
    tensor: StoredTensor, conversion: Conversion, counted: Callable[[int], None]
) -> Iterator[bytes]:
    for block in tensor.row_blocks():
        data = conversion.apply(block).data.tobytes()
        counted(len(data))
        yield data


def _write_shards(folder: Path, entries: list[Entry]) -> None:
    """Write one file, or several and the index that names them."""
    shards: list[list[Entry]] = [[]]
    for entry in entries:
        size = sum(other.num_bytes for other in shards[-1])
        if shards[-1] and size + entry.num_bytes > MAX_SHARD_BYTES:
            shards.append([])
        shards[-1].append(entry)
    if len(shards) == 1:
        write_safetensors(folder / "model.safetensors", entries)
        return
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_safetensors(folder / name, shard)
        weight_map |= {entry.name: name for entry in shard}
    total = sum(entry.num_bytes for entry in entries)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    text = json.dumps(index, indent=2) + "\n"
    (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")


def _copy(folder: Path, source: Path, progress: Progress) -> None:
    """Copy a folder's files and hold every copy against the bytes that were read."""
    files = _files(source)
    counted = counter(progress, sum(file.stat().st_size for file in files))
    for file in files:
        target = folder / file.relative_to(source)
        target.parent.mkdir(exist_ok=True)
        copy_file(file, target, counted)


def copy_file(source: Path, target: Path, counted: Callable[[int], None]) -> str:
    """Copy a file, read the copy again, and return its sha256."""
    digest = hashlib.sha256()
    with source.open("rb") as read, target.open("wb") as write:
        while chunk := read.read(_CHUNK_BYTES):
            digest.update(chunk)
            write.write(chunk)
            counted(len(chunk))
    if hash_file(target) != digest.hexdigest():
        raise CheckpointError(
            f"{target} is not what was written to it.", "Check the disk, and export again."
        )
    return digest.hexdigest()


def _files(folder: Path) -> list[Path]:
    """Return the files of a model's folder that engines read; code is never among them."""
    found: Iterable[Path] = [*folder.iterdir(), *folder.glob("additional_chat_templates/*.jinja")]
    return sorted(
        file
        for file in found
        if file.is_file() and (file.suffix in _COPIED or file.name.startswith("LICENSE"))
    )


def counter(progress: Progress, total_bytes: int) -> Callable[[int], None]:
    """Return what counts bytes that were written, for a bar."""
    progress.begin("the backbone", total_bytes, 0)
    done = 0

    def count(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        progress.update(done)

    return count
