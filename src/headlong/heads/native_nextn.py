"""Native MTP layers: read from the model's own checkpoint or from a separate file.

In:  a checkpoint whose MTP tensors have their canonical names: blocks behind the backbone's last,
     with `nextn.*` around the layer (`weights/mtp_names.py`).
Out: a `NextnHead` that shares the backbone's embedding and LM head, or a refusal with the reason.
The layer is built by the same code as the backbone's layers.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import numpy as np

from headlong.config import DraftVocabularyName, QuantName
from headlong.errors import HeadError
from headlong.heads.draft_vocabulary import choose_ids, make_draft_vocabulary
from headlong.heads.head import HeadReport
from headlong.heads.head_weights import (
    FLOAT_TYPES,
    HEAD_REMEDY,
    HeadWeights,
    check_vocabulary,
    list_names,
)
from headlong.heads.nextn import NextnHead
from headlong.heads.nextn_families import FAMILIES, NextnSwitches
from headlong.models.registry import ARCHITECTURES
from headlong.models.transformer import Backbone
from headlong.ops.blocks import Linear, Matrix, Norm
from headlong.ops.op_set import Ops
from headlong.weights.checkpoint import Checkpoint
from headlong.weights.tensors import StoredTensor
from headlong.weights.weight_reader import WeightReader

_BLOCK = re.compile(r"blk\.(\d{1,4})\..+")
_ANNOUNCED = (
    "nextn_predict_layers",
    "num_nextn_predict_layers",
    "mtp_num_hidden_layers",
    "num_mtp_layers",
    "num_mtp_modules",
)
_NEVER_ANNOUNCED = ("mimo2", "qwen3next")
"""Architectures whose MTP layers no metadata mention."""


def read_native_nextn(checkpoint: Checkpoint, num_layers: int) -> HeadWeights | None:
    """Return the MTP modules behind a backbone of so many layers; None when there are none."""
    tensors = {
        name: tensor
        for name, tensor in checkpoint.tensors.items()
        if (match := _BLOCK.fullmatch(name)) is not None and int(match[1]) >= num_layers
    }
    if not tensors:
        return None
    return HeadWeights("nextn", {}, tensors, source=str(checkpoint.path), checkpoint=checkpoint)


def build_native_nextn(
    head: HeadWeights, backbone: Backbone, reader: WeightReader | None = None
) -> NextnHead:
    """Build the first MTP module of a checkpoint on its backbone, or refuse it.

    Training reads its tensors in a way of its own (`reader`).
    """
    checkpoint, tensors, quant = head.checkpoint, head.tensors, head.quant
    assert checkpoint is not None, "this head came from a folder of its own"
    if checkpoint.architecture != backbone.config.architecture:
        raise HeadError(
            f"{head.source} holds an MTP layer of a {checkpoint.architecture} model; this one is "
            f"{backbone.config.architecture}.",
            HEAD_REMEDY,
        )
    config, ops = backbone.config, backbone.ops
    index, hidden = config.num_layers, config.hidden_size
    check_vocabulary(head, config.vocab_size)
    pack = partial(_pack, ops, quant=quant)
    weights = reader or WeightReader(checkpoint, pack, config.num_layers)
    around = f"blk.{index}.nextn."

    def norm(name: str) -> Norm:
        return Norm(weights.vector(f"{around}{name}.weight", hidden), config.norm_eps)

    def own_matrix(name: str) -> Matrix | None:
        """Return a matrix of the head's own, None where it has the backbone's."""
        full_name = f"{around}{name}.weight"
        if full_name not in tensors or _repeats_backbone(tensors[full_name], name, checkpoint):
            return None
        return weights.matrix(full_name, (config.vocab_size, hidden))

    family = FAMILIES.get(checkpoint.architecture)
    fc = weights.matrix(f"{around}eh_proj.weight", (hidden, 2 * hidden))
    fc_bias = weights.optional_vector(f"{around}eh_proj.bias", hidden)
    lm_head, embedding = own_matrix("shared_head_head"), own_matrix("embed_tokens")
    layer = ARCHITECTURES[checkpoint.architecture].layer_builder(config, weights)(index)
    norms = [norm(name) for name in ("enorm", "hnorm", "shared_head_norm")]
    used = set(weights.finish().used)
    return NextnHead(
        backbone=backbone,
        switches=NextnSwitches() if family is None else family.switches,
        embedding_norm=norms[0],
        hidden_norm=norms[1],
        fc=Linear(fc, fc_bias),
        layer=layer,
        norm=norms[2],
        lm_head=backbone.lm_head if lm_head is None else Linear(lm_head),
        embedding=backbone.embedding if embedding is None else embedding,
        embedding_scale=backbone.embedding_scale,
        vocabulary=None,
        num_bytes=sum(tensor.num_bytes for name, tensor in tensors.items() if name in used),
        report=HeadReport(*_left_over(head, used, index), quant=quant),
    )


def prune_vocabulary(
    head: NextnHead,
    native: HeadWeights,
    model: Checkpoint,
    name: DraftVocabularyName,
    special_ids: Iterable[int],
) -> NextnHead:
    """Let a native head of this model draft from fewer tokens where that is worth it.

    A tuned one drafts from those that it learned to draft, and from no others unless asked to.
    """
    backbone = head.backbone
    ids = native.vocabulary
    if ids is None:
        ids = choose_ids(name, backbone.config.vocab_size, special_ids)
    if ids is None or name == "full":
        return head
    own = native.tensors.get(f"blk.{backbone.config.num_layers}.nextn.shared_head_head.weight")
    if own is None or head.lm_head is backbone.lm_head:
        own = model.tensors.get("output.weight", model.tensors["token_embd.weight"])
    lm_head = Linear(_pack(backbone.ops, own.with_rows(ids), native.quant))
    if native.vocabulary is not None:
        return replace(head, vocabulary=ids, lm_head=lm_head)
    return replace(
        head, fewer_tokens=make_draft_vocabulary(name, ids, lm_head, backbone, head.layer)
    )


def _pack(ops: Ops, tensor: StoredTensor, quant: QuantName | None) -> Matrix:
    """Pack a matrix; what the file holds quantised stays as it is."""
    return ops.matrix(tensor, quant if tensor.type in FLOAT_TYPES.values() else None)


def announced_modules(checkpoint: Checkpoint) -> int:
    """Return how many MTP modules a checkpoint's metadata promises."""
    metadata, architecture = checkpoint.metadata, checkpoint.architecture
    nested = metadata.get("text_config")
    places = [metadata, nested if isinstance(nested, dict) else {}]
    names = [*_ANNOUNCED, *(f"{architecture}.{name}" for name in _ANNOUNCED)]
    values = [place.get(name) for place in places for name in names]
    return max((v for v in values if isinstance(v, int) and not isinstance(v, bool)), default=0)


def find_stripped(checkpoint: Checkpoint) -> HeadError | None:
    """Return what is to be said of a checkpoint that lost its MTP modules; None of all others."""
    announced = announced_modules(checkpoint)
    says = f"The model says it comes with {announced} MTP layer{'s' if announced > 1 else ''}"
    if not announced and checkpoint.architecture in _NEVER_ANNOUNCED:
        announced, says = 1, "Models of this kind are published with MTP layers"
    if not announced or read_native_nextn(checkpoint, checkpoint.num_layers or 0) is not None:
        return None
    return HeadError(
        f"{says}, but their tensors are not in the file: it was stripped.",
        "Get a file that kept them (many converters drop them, mlx-lm always), give them with "
        "--head PATH (head=… in Python), or train a head with `headlong train`.",
    )


def _left_over(
    head: HeadWeights, used: set[str], index: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what of the MTP tensors nothing reads, and what there is to say about it."""
    shared = {f"blk.{index}.nextn.{part}.weight" for part in ("shared_head_head", "embed_tokens")}
    unused = [name for name in head.tensors if name not in used | shared]
    extra = [name for name in unused if name.startswith(f"blk.{index}.")]
    if extra:  # a layer without some of its parts would draft wrongly
        raise HeadError(
            f"{head.source} has an MTP layer with parts that no block here computes: "
            f"{list_names(extra)}.",
            HEAD_REMEDY,
        )
    notes = []
    if head.checkpoint is not None and head.checkpoint.architecture not in FAMILIES:
        notes.append(
            "The model's architecture is not in the table of MTP families; its head is read as "
            "Qwen's and DeepSeek's are."
        )
    if unused:
        notes.append(
            f"Only the first MTP module drafts, again for every depth; {len(unused)} tensors of "
            "further modules are unused."
        )
    return tuple(sorted(unused)), tuple(notes)


def _repeats_backbone(tensor: StoredTensor, name: str, checkpoint: Checkpoint) -> bool:
    """Tell whether an embedding or LM head only repeats the backbone's, byte for byte."""
    embedding = checkpoint.tensors.get("token_embd.weight")
    is_lm_head = name == "shared_head_head"
    original = checkpoint.tensors.get("output.weight", embedding) if is_lm_head else embedding
    if original is None or (tensor.type, tensor.shape) != (original.type, original.shape):
        return False
    return np.array_equal(tensor.data, original.data)
