"""The `nextn` head: one MTP layer in the manner of DeepSeek, Qwen, GLM and MiMo.

    x = fc([embedding_norm(e), hidden_norm(h)])       e embeds the token that follows h's row
    y = layer(x), z = norm(y), logits = lm_head(z)    z or y is carried on as the next h

In:  `HeadWeights` of kind nextn from a folder of their own (`native_nextn.py` reads the MTP layers
     that models bring along).
Out: `NextnHead`, or a refusal with the reason. What differs between families are five switches.
"""

from dataclasses import dataclass
from typing import Any

from headlong.heads.decoder_layer import (
    LayerSpec,
    build_layer,
    check_hidden_size,
    expected_layer,
    layer_config,
    read_layer_spec,
)
from headlong.heads.head import HeadReport
from headlong.heads.head_weights import HeadParts, HeadWeights, Shape, check_vocabulary
from headlong.heads.layer_head import LayerHead
from headlong.heads.nextn_families import (
    NextnSwitches,
    read_switches,
    write_switches,
)
from headlong.models.hidden import HiddenRows
from headlong.models.model_config import ModelConfig
from headlong.models.transformer import Backbone
from headlong.ops.blocks import Norm
from headlong.ops.draft_blocks import Fusion
from headlong.ops.op_set import Array, RowBlocks, Rows

MTP_LAYER = "layers.0."


@dataclass(frozen=True, slots=True, kw_only=True)
class NextnHead(LayerHead):
    """A recursive head of one native-style MTP layer; `fc` is (H, 2 * H)."""

    switches: NextnSwitches
    embedding_norm: Norm
    hidden_norm: Norm

    @property
    def kind(self) -> str:
        """The name of this format."""
        return "nextn"

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

    @property
    def zeroes_first_embedding(self) -> bool:
        """Whether the row at position 0 does not see its token."""
        return self.switches.first_embedding == "zeroed"

    def enter(self, features: Array, blocks: RowBlocks | None = None) -> Array:
        """Begin with the backbone's hidden states as they are: (N, H)."""
        return features

    def layer_input(self, state: Array, rows: Rows) -> tuple[Array, None]:
        """Fuse states and embeddings: (N, H)."""
        return self.fuse(state, self._embed(rows)), None

    def fuse(self, state: Array, embedded: Array) -> Array:
        """Make one input of states and embeddings, (N, H) each: (N, H)."""
        halves = [
            self.ops.norm(embedded, self.embedding_norm),
            self.ops.norm(state, self.hidden_norm),
        ]
        if self.switches.concat == "hidden_first":
            halves.reverse()
        return self.ops.project(self.ops.join(halves, axis=-1), self.fc)

    def _embed(self, rows: Rows) -> Array:
        embedded = self.ops.embed(self.embedding, rows.token_ids, self.embedding_scale)  # (N, H)
        if self.zeroes_first_embedding:
            for span in rows.spans:
                if span.first_position == 0:
                    embedded[span.first_row] = 0
        return embedded


def build_nextn(weights: HeadWeights, backbone: Backbone) -> NextnHead:
    """Build the head of a head folder, or refuse it when it does not fit the backbone."""
    switches = read_switches(weights.config, weights.source)
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
        report=HeadReport(parts.unused_tensors, quant=weights.quant),
    )


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
