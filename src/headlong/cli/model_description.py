"""Describe a model file without loading its weights.

In:  the path of a model, a backend, perhaps a head folder.
Out: a `ModelDescription`. The model is put together as for running, through the same doors, except
     that matrices are weighed instead of unpacked; so what fits here also runs, and what does not
     is described as far as possible, with the reason.
"""

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from headlong.decode.choose_runner import slow_note
from headlong.errors import HeadlongError
from headlong.heads.choose_head import share_embedding
from headlong.heads.head import Head
from headlong.heads.head_files import build_head, find_native_head, read_head_weights
from headlong.heads.shipped_heads import find_shipped_head
from headlong.models.model_config import ModelConfig, read_config
from headlong.models.registry import load_backbone
from headlong.models.traffic import idle_parameters
from headlong.models.transformer import Backbone
from headlong.ops.op_set import Ops
from headlong.ops.sizing_ops import SizingOps
from headlong.text.tokenizer import load_tokenizer
from headlong.weights.checkpoint import Checkpoint, open_checkpoint
from headlong.weights.head_folders import SHIPPED
from headlong.weights.tensors import StoredTensor
from headlong.weights.weight_reader import LoadReport, WeightReader

_KV_SAMPLE = 256
"""Positions over which a cache is measured."""


@dataclass(frozen=True, slots=True)
class TypeShare:
    """All tensors that are stored the same way."""

    type: str
    num_tensors: int
    num_parameters: int
    num_bytes: int
    packed_as: tuple[str, ...]
    """The formats they are in when the backend runs them."""


@dataclass(frozen=True, slots=True)
class TextDescription:
    """What is known of the tokenizer; `problem` is why it cannot be used."""

    kind: str = ""
    vocab_size: int = 0
    eos_tokens: tuple[str, ...] = ()
    has_chat_template: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class HeadDescription:
    """One head, inside the model, shipped or in a folder; `problem` is why it cannot draft."""

    source: str
    kind: str = ""
    draft_vocab_size: int = 0
    tap_layers: tuple[int, ...] = ()
    stored_bytes: int = 0
    memory_bytes: int = 0
    kv_bytes_per_token: int = 0
    unused_tensors: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """Everything `headlong inspect` tells; `problem` is why the model cannot run here."""

    path: Path
    format: str
    architecture: str
    file_bytes: int
    config: ModelConfig | None
    text: TextDescription
    types: tuple[TypeShare, ...]
    num_parameters: int
    """Of the backbone; heads and left-over tensors are not counted."""
    num_active_parameters: int
    """Of these, all but those of the experts that a row does not go through."""
    heads: tuple[HeadDescription, ...]
    head_tensors: tuple[str, ...]
    """Tensors in the model's own file that look like an MTP head."""
    left_over: tuple[str, ...]
    """Tensors that neither backbone nor head reads."""
    backend: str
    backend_note: str
    """Also why the model does not run as fast there as others do."""
    weights_bytes: int | None
    """Memory of the backbone's matrices; None when it cannot be built."""
    kv_bytes_per_token: int | None
    problem: str = ""
    state_bytes_per_sequence: int = 0
    """Of recurrent layers, snapshots included; a sequence takes them however long it is."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        config = asdict(self.config) if self.config is not None else None
        if config is not None:
            config["local_layers"] = sorted(config["local_layers"])
        return {
            "model": self.path.name,
            **asdict(self),
            "path": str(self.path),
            "config": config,
            "can_run": not self.problem,
        }


def describe_model(path: Path, ops: Ops, head_path: Path | None = None) -> ModelDescription:
    """Describe a model, and a head folder if one is given, for one backend."""
    checkpoint = open_checkpoint(path)
    sizing = SizingOps(ops)
    backbone: Backbone | None = None
    problem = ""
    try:
        # Putting a model together asks a backend for matrices and caches only.
        loaded = load_backbone(checkpoint, cast(Ops, sizing))
        backbone, report = loaded.backbone, loaded.report
    except HeadlongError as error:
        problem, report = str(error), _guess_report(checkpoint)
    # Read before the heads are weighed too.
    weights_bytes = sizing.num_bytes if backbone is not None else None
    num_parameters = sum(math.prod(checkpoint.tensors[name].shape) for name in report.used)
    return ModelDescription(
        path=path,
        format=checkpoint.format,
        architecture=checkpoint.architecture,
        file_bytes=_file_bytes(path),
        config=_read_config(checkpoint) if backbone is None else backbone.config,
        text=_describe_text(checkpoint),
        types=_list_types(checkpoint.tensors, ops),
        num_parameters=num_parameters,
        num_active_parameters=num_parameters - (idle_parameters(backbone) if backbone else 0),
        heads=_describe_heads(checkpoint, backbone, sizing, head_path),
        head_tensors=report.head_tensors,
        left_over=tuple(sorted({*report.left_over} - {*report.head_tensors})),
        backend=ops.name,
        backend_note=ops.note if backbone is None else _note(backbone, ops),
        weights_bytes=weights_bytes,
        kv_bytes_per_token=None if backbone is None else _kv_bytes_per_token(backbone),
        state_bytes_per_sequence=0 if backbone is None else backbone.make_cache().bytes_for(0),
        problem=problem,
    )


def _note(backbone: Backbone, ops: Ops) -> str:
    return ", ".join(part for part in (ops.note, slow_note(backbone, ops)) if part)


def _guess_report(checkpoint: Checkpoint) -> LoadReport:
    """Tell head from backbone by names alone, for a model that cannot be put together."""
    config = _read_config(checkpoint)
    num_layers = sys.maxsize if config is None else config.num_layers
    unread = WeightReader(checkpoint, lambda tensor: tensor, num_layers).finish()
    is_of_head = set(unread.head_tensors)
    used = tuple(name for name in unread.left_over if name not in is_of_head)
    return LoadReport(used, unread.head_tensors, unread.head_tensors)


def _read_config(checkpoint: Checkpoint) -> ModelConfig | None:
    try:
        return read_config(checkpoint)
    except HeadlongError:
        return None  # said by load_backbone already, or the architecture is unknown anyway


def _describe_heads(
    checkpoint: Checkpoint,
    backbone: Backbone | None,
    sizing: SizingOps,
    head_path: Path | None,
) -> tuple[HeadDescription, ...]:
    """Describe the head inside the model, or the one we ship for it, and the one in the folder.

    They are weighed in the precision that `LLM.load` packs them in.
    """
    if backbone is None:
        if head_path is None:
            return ()
        problem = "Whether it fits is unknown, since the model itself cannot be put together."
        return (HeadDescription(str(head_path), problem=problem),)

    def describe_folder(source: str, folder: Path) -> HeadDescription | None:
        def load() -> Head:
            weights = share_embedding(read_head_weights(folder), checkpoint, backbone)
            return build_head(weights.packed("auto"), backbone)

        return _describe_head(source, load, sizing)

    native = _describe_head(
        "inside the model", lambda: find_native_head(checkpoint, backbone, "auto"), sizing
    )
    descriptions = [native]
    if head_path is not None:
        descriptions.append(describe_folder(str(head_path), head_path))
    elif native is None and (shipped := find_shipped_head(backbone)) is not None:
        origin = "shipped with Headlong" if shipped.parent == SHIPPED else "pulled"
        descriptions.append(describe_folder(origin, shipped))
    return tuple(description for description in descriptions if description is not None)


def _describe_head(
    source: str, load: Callable[[], Head | None], sizing: SizingOps
) -> HeadDescription | None:
    bytes_before = sizing.num_bytes
    try:
        head = load()
    except HeadlongError as error:
        return HeadDescription(source, problem=str(error))
    if head is None:
        return None
    return HeadDescription(
        source=source,
        kind=head.kind,
        draft_vocab_size=0 if head.vocabulary is None else len(head.vocabulary),
        tap_layers=head.tap_layers,
        stored_bytes=head.num_bytes,
        memory_bytes=sizing.num_bytes - bytes_before,
        kv_bytes_per_token=_kv_bytes_per_token(head),
        unused_tensors=head.report.unused_tensors,
        notes=head.report.notes,
    )


def _describe_text(checkpoint: Checkpoint) -> TextDescription:
    try:
        tokenizer = load_tokenizer(checkpoint)
        eos_tokens = tuple(tokenizer.token_text(i) for i in sorted(tokenizer.eos_ids))
    except HeadlongError as error:
        return TextDescription(problem=str(error))
    return TextDescription(
        kind=tokenizer.kind,
        vocab_size=tokenizer.vocab_size,
        eos_tokens=eos_tokens,
        has_chat_template=tokenizer.chat_template is not None,
    )


def _list_types(tensors: Mapping[str, StoredTensor], ops: Ops) -> tuple[TypeShare, ...]:
    """Sum tensors up by the way they are stored, the largest share first."""
    groups: dict[str, list[StoredTensor]] = {}
    for tensor in tensors.values():
        groups.setdefault(tensor.type.name, []).append(tensor)
    shares = [
        TypeShare(
            type=name,
            num_tensors=len(group),
            num_parameters=sum(math.prod(tensor.shape) for tensor in group),
            num_bytes=sum(tensor.num_bytes for tensor in group),
            packed_as=tuple(sorted({_running_format(tensor, ops) for tensor in group})),
        )
        for name, group in groups.items()
    ]
    return tuple(sorted(shares, key=lambda share: -share.num_bytes))


def _running_format(tensor: StoredTensor, ops: Ops) -> str:
    # Norms and biases are never packed: every backend computes with them in 32 bits.
    return ops.matrix_format(tensor) if len(tensor.shape) > 1 else "f32"


def _file_bytes(path: Path) -> int:
    files = [path] if path.is_file() else path.glob("*.safetensors")
    return sum(file.stat().st_size for file in files)


def _kv_bytes_per_token(model: Backbone | Head) -> int:
    cache = model.make_cache()
    return (cache.bytes_for(2 * _KV_SAMPLE) - cache.bytes_for(_KV_SAMPLE)) // _KV_SAMPLE
