"""The `nextn` head: one MTP layer in the manner of DeepSeek, Qwen, GLM and MiMo.

    x = fc([embedding_norm(e), hidden_norm(h)])       e embeds the token that follows h's row
    y = layer(x), z = norm(y), logits = lm_head(z)    z or y is carried on as the next h

In:  `HeadWeights` of kind nextn (a head folder), or MTP tensors found in a backbone's checkpoint.
Out: `NextnHead`, or a refusal with the reason. What differs between families are five switches.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headlong.config import QuantName
from headlong.errors import HeadError
from headlong.heads.decoder_layer import (
    LayerHead,
    LayerSpec,
    build_layer,
    check_hidden_size,
    expected_layer,
    layer_config,
    read_layer_spec,
)
from headlong.heads.head import HeadReport
from headlong.heads.head_weights import HeadParts, HeadWeights, Shape, check_vocabulary
from headlong.heads.nextn_families import (
    MTP_LAYER,
    NextnModule,
    NextnSwitches,
    find_module,
    read_switches,
    refuse_uncomputed,
    write_switches,
)
from headlong.models.hidden import HiddenRows
from headlong.models.model_config import ModelConfig
from headlong.models.transformer import Backbone
from headlong.ops.blocks import Fusion, Norm
from headlong.ops.op_set import Array, Rows
from headlong.weights.checkpoint import Checkpoint
from headlong.weights.tensors import StoredTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class NextnHead(LayerHead):
    """A recursive head of one native-style MTP layer; `fc` is (H, 2 * H)."""

    switches: NextnSwitches
    embedding_norm: Norm
    hidden_norm: Norm
    tap_layers: tuple[int, ...] = ()
    kind: str = "nextn"

    @property
    def carries_normed(self) -> bool:
        """Whether the next depth reads the layer's result after the final norm."""
        return self.switches.carried == "normed"

    @property
    def fusion(self) -> Fusion:
        """How state and embedding become one input."""
        is_state_first = self.switches.concat == "hidden_first"
        return Fusion(self.embedding_norm, self.hidden_norm, self.fc, is_state_first)

    def features(self, hidden: HiddenRows) -> Array:
        """Return the backbone's hidden states as this family reads them: (N, H)."""
        return hidden.normed if self.switches.trunk == "normed" else hidden.raw

    def enter(self, features: Array) -> Array:
        """Begin with the backbone's hidden states as they are: (N, H)."""
        return features

    def layer_input(self, state: Array, rows: Rows) -> tuple[Array, None]:
        """Fuse states and embeddings: (N, H)."""
        halves = [
            self.ops.norm(self._embed(rows), self.embedding_norm),
            self.ops.norm(state, self.hidden_norm),
        ]
        if self.switches.concat == "hidden_first":
            halves.reverse()
        return self.ops.project(self.ops.join(halves, axis=-1), self.fc), None

    def _embed(self, rows: Rows) -> Array:
        embedded = self.ops.embed(self.embedding, rows.token_ids, self.embedding_scale)  # (N, H)
        if self.switches.first_embedding == "zeroed":
            for span in rows.spans:
                if span.first_position == 0:
                    embedded[span.first_row] = 0
        return embedded


def build_nextn(weights: HeadWeights, backbone: Backbone) -> NextnHead:
    """Build the head of a head folder, or refuse it when it does not fit the backbone."""
    if "nextn" in weights.config:
        switches = read_switches(weights.config, weights.source)
        return _build(weights, backbone, switches, ())
    # A folder cut out of a published checkpoint: its names and model type tell the family.
    model_type = str(weights.config.get("model_type", ""))
    module = find_module(weights.tensors, model_type, num_layers=0)
    if module is None:
        raise HeadError(
            f"{weights.source}: config.json has no nextn switches, and the tensors follow no "
            "published family.",
            "Save the head with headlong, or give the folder of the model it belongs to.",
        )
    return _build_module(module, replace(weights, tensors=module.tensors), backbone)


def build_native_nextn(
    checkpoint: Checkpoint, backbone: Backbone, quant: QuantName | None = None
) -> NextnHead | None:
    """Build the MTP head inside a backbone's own checkpoint; None when it has none.

    A head that is there but cannot be used is refused, never passed over.
    """
    metadata = checkpoint.metadata
    is_gguf = checkpoint.format == "gguf"
    model_type = checkpoint.architecture if is_gguf else str(metadata.get("model_type"))
    module = find_module(checkpoint.tensors, model_type, backbone.config.num_layers)
    if module is None:
        return None
    if is_gguf:  # llama.cpp's converter has added the 1 of zero-centred norms already
        family = replace(module.family, switches=replace(module.family.switches, norm="plain"))
        module = replace(module, family=family)
    tensors = _without_copies(module.tensors, checkpoint.tensors)
    weights = HeadWeights("nextn", {}, tensors, source=f"{checkpoint.path}", quant=quant)
    return _build_module(module, weights, backbone)


def make_nextn_config(
    config: ModelConfig, switches: NextnSwitches, draft_vocab_size: int | None = None
) -> dict[str, Any]:
    """Return the config.json of a nextn head with the backbone's sizes and rotary frequencies."""
    return {
        "architectures": ["HeadlongNextn"],
        "model_type": "headlong_nextn",
        **layer_config(config),
        "num_hidden_layers": 1,
        "draft_vocab_size": draft_vocab_size or config.vocab_size,
        "nextn": write_switches(switches),
    }


def _build_module(module: NextnModule, weights: HeadWeights, backbone: Backbone) -> NextnHead:
    """Build a head of a published family, noting what the table had to assume."""
    refuse_uncomputed(module, weights.source, backbone.config.num_heads * backbone.config.head_dim)
    notes: list[str] = []
    if not module.is_known:
        notes.append(
            f"The model type is not in the table of MTP families; its head is read as "
            f"{module.family.name}."
        )
    if module.other_modules:
        notes.append(
            f"Only the first MTP module drafts, again for every depth; {len(module.other_modules)} "
            "tensors of further modules are unused."
        )
    head = _build(weights, backbone, module.family.switches, tuple(notes))
    unused = (*head.report.unused_tensors, *module.other_modules)
    return replace(head, report=replace(head.report, unused_tensors=unused))


def _build(
    weights: HeadWeights, backbone: Backbone, switches: NextnSwitches, notes: tuple[str, ...]
) -> NextnHead:
    spec = read_layer_spec(weights, backbone)
    check_hidden_size(weights, spec, backbone.config)
    parts = HeadParts(weights, backbone.ops, 1.0 if switches.norm == "one_plus" else 0.0)
    parts.check(_expected(weights, spec, backbone.config, parts))
    parts.refuse_leftovers(MTP_LAYER)
    has_own_embedding = parts.has("embed_tokens.weight")
    return NextnHead(
        backbone=backbone,
        switches=switches,
        embedding_norm=parts.norm("pre_fc_norm_embedding", spec.norm_eps),
        hidden_norm=parts.norm("pre_fc_norm_hidden", spec.norm_eps),
        fc=parts.linear("fc"),
        layer=build_layer(parts, MTP_LAYER, spec),
        norm=parts.norm("norm", spec.norm_eps),
        lm_head=parts.linear("lm_head") if parts.has("lm_head.weight") else backbone.lm_head,
        embedding=parts.matrix("embed_tokens.weight") if has_own_embedding else backbone.embedding,
        embedding_scale=backbone.embedding_scale,
        vocabulary=weights.vocabulary,
        num_bytes=parts.num_bytes,
        report=HeadReport(parts.unused_tensors, notes, weights.quant),
    )


def _expected(
    weights: HeadWeights, spec: LayerSpec, config: ModelConfig, parts: HeadParts
) -> dict[str, Shape]:
    hidden = config.hidden_size
    num_drafted = check_vocabulary(weights, config.vocab_size)
    shapes: dict[str, Shape] = {
        "fc.weight": (hidden, 2 * hidden),
        "pre_fc_norm_embedding.weight": (hidden,),
        "pre_fc_norm_hidden.weight": (hidden,),
        **expected_layer(spec, hidden, MTP_LAYER, parts.has),
        "norm.weight": (hidden,),
    }
    if weights.vocabulary is not None or parts.has("lm_head.weight"):
        shapes["lm_head.weight"] = (num_drafted, hidden)
    if parts.has("embed_tokens.weight"):
        shapes["embed_tokens.weight"] = (config.vocab_size, hidden)
    for name in ("fc.bias", "lm_head.bias"):
        if parts.has(name):
            shapes[name] = shapes[name.replace("bias", "weight")][:1]
    return shapes


def _without_copies(
    tensors: Mapping[str, StoredTensor], backbone: Mapping[str, StoredTensor]
) -> dict[str, StoredTensor]:
    """Drop an embedding or LM head that only repeats the backbone's, byte for byte."""
    originals = {
        "embed_tokens.weight": backbone.get("token_embd.weight"),
        "lm_head.weight": backbone.get("output.weight", backbone.get("token_embd.weight")),
    }
    return {
        name: tensor
        for name, tensor in tensors.items()
        if not _is_copy(tensor, originals.get(name))
    }


def _is_copy(tensor: StoredTensor, original: StoredTensor | None) -> bool:
    if original is None or (tensor.type, tensor.shape) != (original.type, original.shape):
        return False
    return np.array_equal(tensor.data, original.data)
