"""Export a head, and the backbone it drafts for, to another engine.

In:  an `ExportRequest`.
Out: a folder that the engine loads, written whole or not at all, whose head was read back and
compared; and an `Exported` that says what is in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from headlong.errors import HeadError
from headlong.export.backbone_config import hugging_face_class
from headlong.export.backbone_folder import folder_bytes, write_backbone_folder
from headlong.export.backbone_gguf import (
    copy_backbone_gguf,
    gguf_bytes,
    tokenizer_metadata,
    write_backbone_gguf,
)
from headlong.export.conversion import Conversion
from headlong.export.head_folder import write_engine_folder, write_speculators_folder
from headlong.export.head_gguf import write_head_gguf
from headlong.export.head_source import HeadSource, choose_source, maths_of
from headlong.export.readme import Exported, write_readme
from headlong.export.staging import refuse_existing, staged
from headlong.export.targets import TARGETS, TargetName
from headlong.heads.eagle3 import Eagle3Head
from headlong.heads.head_files import build_head, read_head_weights
from headlong.heads.head_weights import FloatType
from headlong.models.registry import load_backbone
from headlong.ops.backends import make_ops
from headlong.ops.op_set import Ops
from headlong.ops.sizing_ops import SizingOps
from headlong.weights.checkpoint import Checkpoint, open_checkpoint
from headlong.weights.progress import Progress
from headlong.weights.sources import resolve_model
from headlong.weights.store import hash_file
from headlong.weights.tensors import StoredTensor

_SPARE_BYTES = 2**26
"""Room for tokenizer, config and README."""


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """What is asked for."""

    target: TargetName
    out: Path
    model: str | None = None
    head: Path | None = None
    has_backbone: bool = False
    float_type: FloatType | None = None
    """None keeps the head's, and is float16 for a backbone that is unpacked."""


def export(request: ExportRequest, progress: Progress) -> Exported:
    """Write what was asked for, or refuse it."""
    refuse_existing(request.out)
    target = TARGETS[request.target]
    path = resolve_model(request.model, progress=progress)
    checkpoint = open_checkpoint(path)
    # Whether it fits is asked of the shapes; nothing is unpacked for that.
    ops = cast(Ops, SizingOps(make_ops("numpy")))
    backbone = load_backbone(checkpoint, ops).backbone
    source = choose_source(checkpoint, backbone, request.head, target)
    float_type = request.float_type or source.float_type
    changes = {"head": Conversion(float_type), "backbone": Conversion(float_type)}
    # From 8 bits or more to 32.
    needed = 4 * sum(one.num_bytes for one in source.weights.tensors.values()) + _SPARE_BYTES
    if request.has_backbone:
        needed += _backbone_bytes(request, checkpoint, changes["backbone"])
    parts = ["head", "backbone"] if request.has_backbone else ["head"]
    with staged(request.out, needed) as folder:
        _write_head(folder, request, source, checkpoint, changes["head"])
        if request.has_backbone:
            _write_backbone(folder, request, checkpoint, changes["backbone"], progress)
        exported = Exported(
            target=target,
            source=source,
            model_path=path,
            float_type=float_type,
            hashes=_hash_weights(folder),
            has_backbone=request.has_backbone,
            shares_changed={part: changes[part].share_changed for part in parts},
        )
        write_readme(folder, exported)
    return exported


def _is_copied(request: ExportRequest, checkpoint: Checkpoint) -> bool:
    """Tell whether the backbone's file goes to llama.cpp as it is quantised."""
    is_gguf = TARGETS[request.target].takes_gguf and checkpoint.format == "gguf"
    return is_gguf and request.float_type is None


def _backbone_bytes(request: ExportRequest, checkpoint: Checkpoint, conversion: Conversion) -> int:
    if _is_copied(request, checkpoint):
        return checkpoint.path.stat().st_size
    count = gguf_bytes if TARGETS[request.target].takes_gguf else folder_bytes
    return count(checkpoint, conversion)


def _write_backbone(
    folder: Path,
    request: ExportRequest,
    checkpoint: Checkpoint,
    conversion: Conversion,
    progress: Progress,
) -> None:
    target = TARGETS[request.target]
    place = folder / target.backbone_name
    if _is_copied(request, checkpoint):
        copy_backbone_gguf(place, checkpoint, progress)
    else:
        write = write_backbone_gguf if target.takes_gguf else write_backbone_folder
        write(place, checkpoint, conversion, progress)


def _write_head(
    folder: Path,
    request: ExportRequest,
    source: HeadSource,
    checkpoint: Checkpoint,
    conversion: Conversion,
) -> None:
    """Write the head and read it back: it must be the same head on the same backbone."""
    place = folder / TARGETS[request.target].head_name
    if request.target == "llama.cpp":
        tokens = tokenizer_metadata(checkpoint)
        written = write_head_gguf(place, source, conversion, tokens)
    elif request.target == "speculators":
        name = "backbone" if request.has_backbone else checkpoint.path.name
        verifier = (name, hugging_face_class(checkpoint))
        written = write_speculators_folder(place, source, conversion, verifier)
    else:
        written = write_engine_folder(place, source, conversion)
    _check_same(place, source, written)


def _check_same(place: Path, source: HeadSource, written: Mapping[str, StoredTensor]) -> None:
    """Read the head again: same numbers, same tokens, same layers, same maths."""
    read = read_head_weights(place)
    is_same = read.tensors.keys() == written.keys() and all(
        np.array_equal(written[name].to_float32(), tensor.to_float32())
        for name, tensor in read.tensors.items()
    )
    vocabularies = [
        None if head.vocabulary is None else head.vocabulary.tolist()
        for head in (source.weights, read)
    ]
    built = build_head(read, source.backbone)
    if (
        not is_same
        or vocabularies[0] != vocabularies[1]
        or not isinstance(built, Eagle3Head)
        or built.tap_layers != source.tap_layers
        or maths_of(built) != maths_of(source.head)
    ):
        raise HeadError(
            f"{place} does not read back as the head that was written.",
            "Check the disk, and export again.",
        )


def _hash_weights(folder: Path) -> dict[str, str]:
    """Return the sha256 of every file with weights."""
    files = [*folder.rglob("*.safetensors"), *folder.rglob("*.gguf")]
    return {file.relative_to(folder).as_posix(): hash_file(file) for file in sorted(files)}
