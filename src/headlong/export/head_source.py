"""The head that is to be exported: chosen as for running, checked, nothing left open.

In:  a model's checkpoint and backbone, perhaps the path of a head.
Out: a `HeadSource` whose config says all that other engines would otherwise fill in their own way.
Heads that no other engine runs from a folder of their own are refused with the reason.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headlong.doctor.head_checks import HeadRecord, read_record
from headlong.errors import HeadError
from headlong.export.targets import Target
from headlong.heads.eagle3 import Eagle3Head, make_eagle3_config
from headlong.heads.fingerprint import fingerprint
from headlong.heads.head_files import build_head, read_head_weights, read_native_head
from headlong.heads.head_weights import (
    FLOAT_TYPES,
    QUANT_KEY,
    FloatType,
    HeadWeights,
    list_names,
)
from headlong.heads.shipped_heads import find_shipped_head
from headlong.models.transformer import Backbone
from headlong.weights.checkpoint import Checkpoint

_NO_EAGLE3 = {
    "medusa": "its parallel heads all read one state, and no other engine reads them as they are",
    "meta": "its parallel heads all read one state, and no other engine has their layers",
    "assistant": "an assistant is a model of its own, which other engines read as it was published",
    "nextn": "it carries a state between depths that no other engine computes outside a model",
}
_LAYER_PARTS = (
    "hidden_norm",
    "input_layernorm",
    "post_attention_layernorm",
    *(f"self_attn.{part}_proj" for part in "qkvo"),
    *(f"mlp.{part}_proj" for part in ("gate", "up", "down")),
)
_PARTS = {
    f"{part}.weight"
    for part in (
        *("fc", "norm", "lm_head", "input_norm", "embed_tokens"),
        *(f"midlayer.{part}" for part in _LAYER_PARTS),
    )
}
"""All that the EAGLE-3 layers of the engines have in common."""


@dataclass(frozen=True, slots=True)
class HeadSource:
    """An EAGLE-3 head that fits its backbone."""

    weights: HeadWeights
    """Its config is whole; its tensors are those that are computed with."""
    head: Eagle3Head
    """Built, but without its numbers."""
    backbone: Backbone
    record: HeadRecord
    path: Path

    @property
    def tap_layers(self) -> tuple[int, ...]:
        """The layers whose inputs it reads."""
        return self.head.tap_layers

    @property
    def is_of_this_model(self) -> bool | None:
        """Whether it was trained on this very model; None when that is not known."""
        known = self.record.fingerprint
        return None if known is None else known == fingerprint(self.backbone)

    @property
    def float_type(self) -> FloatType:
        """The widest type of float it is stored in."""
        stored = {tensor.type for tensor in self.weights.tensors.values()}
        return next((name for name, kind in FLOAT_TYPES.items() if kind in stored), "float16")


def choose_source(
    checkpoint: Checkpoint, backbone: Backbone, path: Path | None, target: Target
) -> HeadSource:
    """Return the head that was named, else the one that was shipped for this model.

    A head that the target has no place for is refused.
    """
    if path is None:
        if read_native_head(checkpoint, backbone.config.num_layers) is not None:
            raise HeadError(
                f"{checkpoint.path} has its MTP layers inside; there is nothing to export.",
                "Other engines draft with them from the model's own files; name another head "
                "with --head DIR.",
            )
        path = find_shipped_head(backbone)
    if path is None:
        raise HeadError(
            f"No head comes with {checkpoint.path.name}.",
            "Name one with --head DIR, or train one with `headlong train`.",
        )
    weights = read_head_weights(path)
    head = build_head(weights, backbone)
    if not isinstance(head, Eagle3Head):
        raise HeadError(
            f"{path} is of kind {weights.kind}: {_NO_EAGLE3[weights.kind]}.",
            "Heads in EAGLE-3 format can be exported; `headlong train` makes one.",
        )
    closed = _closed(weights, head, backbone)
    _refuse_other_maths(closed, head, target)
    return HeadSource(
        weights=closed,
        head=head,
        backbone=backbone,
        record=read_record(path),
        path=path,
    )


def _closed(weights: HeadWeights, head: Eagle3Head, backbone: Backbone) -> HeadWeights:
    """Return the head with all that its backbone would have supplied written into its config."""
    tensors = {
        name: tensor
        for name, tensor in weights.tensors.items()
        if name not in head.report.unused_tensors
    }
    num_drafted = backbone.config.vocab_size if head.vocabulary is None else len(head.vocabulary)
    config = make_eagle3_config(backbone.config, num_drafted)
    rope = dict(weights.config.get("rope_parameters") or {})
    given = {**rope, **weights.config}
    config |= {name: given[name] for name in (*config, QUANT_KEY) if given.get(name) is not None}
    config |= _rope_scaling(weights, backbone)
    config |= {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"}
    config |= {"vocab_size": backbone.config.vocab_size, "tie_word_embeddings": False}
    config |= maths_of(head)
    return replace(weights, config=config, tensors=tensors)


def _rope_scaling(weights: HeadWeights, backbone: Backbone) -> dict[str, Any]:
    own = weights.config
    rope = own.get("rope_parameters") or own.get("rope_scaling") or {}
    is_stretched = rope.get("rope_type", rope.get("type", "default")) != "default"
    says_theta = "rope_theta" in own or "rope_theta" in rope
    if backbone.config.rope_scaling is not None and not says_theta:
        raise HeadError(
            f"{weights.source} does not say how its positions turn; the model's are stretched.",
            "Write rope_theta and rope_scaling into its config.json, as in the model's.",
        )
    return {"rope_scaling": dict(rope)} if is_stretched else {}


def maths_of(head: Eagle3Head) -> dict[str, bool]:
    """Return which variant of EAGLE-3 a head computes, as config.json says it."""
    maths = {
        "norm_before_residual": head.layer.attention.adds_to_normed,
        "norm_before_fc": head.input_norm is not None,
    }
    return {**maths, "norm_output": True} if head.norms_output else maths


def _refuse_other_maths(weights: HeadWeights, head: Eagle3Head, target: Target) -> None:
    """Refuse a head that computes what the target's EAGLE-3 layer does not."""
    backbone = head.backbone
    faults = [f"it has {name}" for name in sorted(weights.tensors.keys() - _PARTS)]
    switches = [name for name, is_on in maths_of(head).items() if is_on]
    faults += [f"it has {name}" for name in switches if name not in target.dialects]
    if weights.config["hidden_act"] != "silu":
        faults.append(f"its MLP uses {weights.config['hidden_act']}")
    if head.layer.attention.window is not None:
        faults.append(f"it looks back {head.layer.attention.window} positions only")
    if head.lm_head is backbone.lm_head:
        faults.append("it has no LM head of its own")
    if head.embedding is backbone.embedding and backbone.embedding_scale != 1.0:
        faults.append("it reads the model's embeddings scaled")
    if faults:
        raise HeadError(
            f"{target.title} cannot run {weights.source}: {list_names(faults)}.",
            "Its EAGLE-3 layer has no biases and no norms of heads, SiLU, and plain embeddings; "
            "name another engine, or train a head of that kind.",
        )
