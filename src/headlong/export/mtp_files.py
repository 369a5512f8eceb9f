"""A model's MTP layers written to a file of their own, or into a model's GGUF file.

In:  a `MtpRequest`.
Out: a GGUF file, or a folder with config.json and safetensors. What was written is read again and
compared; if it is not the same, nothing is there.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType

from headlong.errors import CheckpointError, HeadError
from headlong.export.conversion import Conversion
from headlong.export.mtp_folder import write_mtp_folder
from headlong.export.mtp_layers import Conversions, Format, MtpLayers, entries_as, read_mtp_layers
from headlong.export.mtp_metadata import apart_metadata, check_fit, metadata_with
from headlong.export.staging import refuse_existing, staged
from headlong.heads.head_files import WEIGHTS_FILE
from headlong.heads.head_weights import FLOAT_TYPES, FloatType
from headlong.weights.gguf_file import GgufFile, read_gguf
from headlong.weights.gguf_writer import GgufEntry, write_gguf
from headlong.weights.progress import Progress
from headlong.weights.safetensors_file import read_safetensors
from headlong.weights.tensors import StoredTensor

_SPARE_BYTES = 2**24
"""Room for metadata."""


@dataclass(frozen=True, slots=True)
class MtpRequest:
    """What is asked for."""

    model: Path
    """Where the layers come from."""
    out: Path
    """A GGUF file if it is called so, else a folder."""
    into: Path | None = None
    """The GGUF file of the model whose copy shall get the layers."""
    float_type: FloatType | None = None
    """None keeps each tensor's; what is quantised becomes float16 in folders."""


@dataclass(frozen=True, slots=True)
class MtpWritten:
    """What was written."""

    architecture: str
    num_modules: int
    num_tensors: int
    num_bytes: int
    num_rounded: int
    """How many numbers their new type cannot hold as they were."""
    drops_vocabulary: bool
    """Whether the layers were tuned for a draft vocabulary, which stays behind."""


def convert_mtp_layers(request: MtpRequest, progress: Progress) -> MtpWritten:
    """Write a model's MTP layers, or refuse."""
    refuse_existing(request.out)
    form: Format = "gguf" if request.out.suffix == ".gguf" else "safetensors"
    if request.into is not None and form != "gguf":
        raise HeadError(
            f"{request.out} would be a folder, but layers are put into GGUF files only.",
            "Give the copy a name that ends in .gguf, or leave --into out.",
        )
    layers = read_mtp_layers(request.model)
    conversions: Conversions = {name: Conversion(name) for name in FLOAT_TYPES}
    entries = list(entries_as(layers, form, request.float_type, conversions))
    needed, backbone = sum(entry.num_bytes for entry in entries), None
    if request.into is not None:
        check_fit(request.into, layers)
        backbone = read_gguf(request.into)
        needed += request.into.stat().st_size
    written = _Written(progress, needed)
    with staged(request.out, needed + _SPARE_BYTES, is_folder=form == "safetensors") as place:
        if form == "gguf":
            _write_gguf(place, layers, map(written.watch, entries), backbone)
            found = read_gguf(place).tensors
        else:
            write_mtp_folder(place, layers, map(written.watch, entries))
            found = read_safetensors(place / WEIGHTS_FILE)
        written.check(place, found)
        _check_modules(place, layers)
    return MtpWritten(
        architecture=layers.architecture,
        num_modules=layers.num_modules,
        num_tensors=len(entries),
        num_bytes=sum(entry.num_bytes for entry in entries),
        num_rounded=sum(one.num_changed for one in conversions.values()),
        drops_vocabulary="d2t" in layers.checkpoint.tensors,
    )


class _Written:
    """Remembers what was written of every tensor, to hold the file against it."""

    def __init__(self, progress: Progress, total_bytes: int) -> None:
        self._progress = progress
        self._hashes: dict[str, str] = {}
        self._done = 0
        progress.begin("the MTP layers", total_bytes, 0)

    def watch(self, entry: GgufEntry) -> GgufEntry:
        """Return the entry, to be remembered when it is made."""

        def make() -> StoredTensor:
            tensor = entry.make()
            self._hashes[entry.name] = _hash(tensor)
            self._done += tensor.num_bytes
            self._progress.update(self._done)
            return tensor

        return replace(entry, make=make)

    def check(self, place: Path, found: dict[str, StoredTensor]) -> None:
        """Refuse a file that does not hold what was written."""
        wrong = [n for n, h in self._hashes.items() if n not in found or _hash(found[n]) != h]
        if wrong:
            raise CheckpointError(
                f"{place} does not read back as it was written: {wrong[0]}.",
                "Check the disk, and convert again.",
            )


def _hash(tensor: StoredTensor) -> str:
    return hashlib.sha256(np.ascontiguousarray(tensor.data).data).hexdigest()


def _check_modules(place: Path, layers: MtpLayers) -> None:
    """Refuse a file whose modules another reader would look for elsewhere."""
    found = read_mtp_layers(place)
    told = (found.architecture, found.num_layers, found.num_modules)
    if told != (layers.architecture, layers.num_layers, layers.num_modules):
        raise CheckpointError(
            f"{place} reads back as {told}, not as the MTP layers of {layers.checkpoint.path}.",
            "Its metadata contradict themselves; convert from another copy of the model.",
        )


def _write_gguf(
    path: Path, layers: MtpLayers, entries: Iterable[GgufEntry], backbone: GgufFile | None
) -> None:
    if backbone is None:
        write_gguf(path, layers.architecture, apart_metadata(layers), entries)
        return
    own = [
        GgufEntry(tensor.name, tensor.shape, tensor.type, partial(replace, tensor))
        for tensor in backbone.tensors.values()
        if isinstance(tensor.type, GGMLQuantizationType)  # as all are in GGUF files
    ]
    metadata = metadata_with(backbone.metadata, layers)
    write_gguf(path, layers.architecture, metadata, [*own, *entries])
