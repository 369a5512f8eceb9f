"""Parallel heads: one small head per depth, all reading the same backbone state.

Medusa: each depth is a few residual blocks x + silu(Wx + b) and an LM head of its own, on the
final hidden state. Meta: each depth is one transformer layer beside the backbone's last one (so it
reads that layer's input), with keys and values of its own; final norm and LM head are shared.
In: `HeadWeights` of kind medusa or meta. Out: heads of the `ParallelHeads` shape, or a refusal.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headlong.arrays import FloatArray, IntArray
from headlong.cache.sequence_state import SequenceState, make_sequence_state
from headlong.config import MAX_DRAFT_TOKENS
from headlong.errors import HeadError
from headlong.heads.decoder_layer import (
    build_layer,
    check_hidden_size,
    expected_layer,
    layer_config,
    read_layer_spec,
)
from headlong.heads.head import HeadReport
from headlong.heads.head_weights import HeadParts, HeadWeights, Shape, check_vocabulary
from headlong.models.hidden import HiddenRows
from headlong.models.model_config import ModelConfig
from headlong.models.rows import append_rows
from headlong.models.transformer import Backbone
from headlong.ops.blocks import Layer, Linear
from headlong.ops.op_set import Array, Ops, Rows

_MEDUSA_BLOCK = re.compile(r"blocks\.(\d{1,4})\.layers\.(\d{1,4})\.weight")
_MEDUSA_LM_HEAD = re.compile(r"lm_heads\.(\d{1,4})\.weight")
_META_LAYER = re.compile(r"extra_heads\.(\d{1,4})\..+")


@dataclass(frozen=True, slots=True)
class MedusaHead:
    """The head of one depth."""

    blocks: tuple[Linear, ...]  # each (H, H)
    lm_head: Linear  # (V_draft, H)


@dataclass(frozen=True, slots=True)
class MedusaHeads:
    """Medusa-style heads."""

    backbone: Backbone
    heads: tuple[MedusaHead, ...]
    vocabulary: IntArray | None  # (V_draft,)
    num_bytes: int
    report: HeadReport
    tap_layers: tuple[int, ...] = ()
    kind: str = "medusa"

    @property
    def ops(self) -> Ops:
        """The backend they run on."""
        return self.backbone.ops

    @property
    def num_depths(self) -> int:
        """How many tokens one pass drafts."""
        return len(self.heads)

    def make_cache(self) -> SequenceState:
        """Return a cache that only counts: these heads keep no keys."""
        return SequenceState([])

    def features(self, hidden: HiddenRows) -> Array:
        """Return what the LM head reads: (N, H)."""
        return hidden.normed

    def states(
        self, features: Array, caches: Sequence[SequenceState], sizes: Sequence[int]
    ) -> Array:
        """Run every depth's blocks over the rows: (N, H) → (num_depths, N, H)."""
        _append(caches, sizes)
        return self.ops.stack([self._run_blocks(head, features) for head in self.heads])

    def logits(self, state: Array, depth: int) -> FloatArray:
        """Score the draft vocabulary at `depth`: (N, H) → (N, V_draft)."""
        return self.ops.to_host(self.ops.project(state, self.heads[depth - 1].lm_head))

    def _run_blocks(self, head: MedusaHead, x: Array) -> Array:
        for block in head.blocks:
            x = self.ops.residual_silu(x, block)
        return x


@dataclass(frozen=True, slots=True)
class MetaHeads:
    """Heads of Meta's multi-token prediction: one transformer layer per depth."""

    backbone: Backbone
    layers: tuple[Layer, ...]
    tap_layers: tuple[int, ...]
    num_bytes: int
    report: HeadReport
    vocabulary: IntArray | None = None
    kind: str = "meta"

    @property
    def ops(self) -> Ops:
        """The backend they run on."""
        return self.backbone.ops

    @property
    def num_depths(self) -> int:
        """How many tokens one pass drafts."""
        return len(self.layers)

    def make_cache(self) -> SequenceState:
        """Return an empty cache for one sequence, one layer per depth."""
        return make_sequence_state(self.ops, self.layers)

    def features(self, hidden: HiddenRows) -> Array:
        """Return the tapped states: (N, H)."""
        assert hidden.taps is not None, "the pass was not asked for taps"
        return hidden.taps

    def states(
        self, features: Array, caches: Sequence[SequenceState], sizes: Sequence[int]
    ) -> Array:
        """Run every depth's layer over the rows: (N, H) → (num_depths, N, H)."""
        ops = self.ops
        rows = _append(caches, sizes)
        states: list[Array] = []
        for depth, layer in enumerate(self.layers):
            kv_layers = [cache.layers[depth] for cache in caches]
            x = ops.mix(features, layer.attention, kv_layers, rows)
            states.append(ops.transform(x, layer.mlp))
        return ops.stack(states)

    def logits(self, state: Array, depth: int) -> FloatArray:
        """Score the backbone's vocabulary; `depth` makes no difference, the LM head is shared."""
        return self.backbone.logits(self.ops.norm(state, self.backbone.final_norm))


def build_medusa(weights: HeadWeights, backbone: Backbone) -> MedusaHeads:
    """Build Medusa heads, or refuse them when they do not fit the backbone."""
    num_drafted = check_vocabulary(weights, backbone.config.vocab_size)
    hidden = backbone.config.hidden_size
    found = [match.groups() for match in map(_MEDUSA_BLOCK.fullmatch, weights.tensors) if match]
    lm_heads = [match[1] for match in map(_MEDUSA_LM_HEAD.fullmatch, weights.tensors) if match]
    num_depths = _count(weights, "heads", [*(head for head, _ in found), *lm_heads])
    num_blocks = _count(weights, "blocks per head", (block for _, block in found))

    parts = HeadParts(weights, backbone.ops)
    blocks = [
        [f"blocks.{head}.layers.{block}" for block in range(num_blocks)]
        for head in range(num_depths)
    ]
    shapes: dict[str, Shape] = {
        f"lm_heads.{head}.weight": (num_drafted, hidden) for head in range(num_depths)
    }
    for name in (name for row in blocks for name in row):
        shapes[f"{name}.weight"] = (hidden, hidden)
        if parts.has(f"{name}.bias"):
            shapes[f"{name}.bias"] = (hidden,)
    parts.check(shapes)
    heads = tuple(
        MedusaHead(tuple(map(parts.linear, row)), parts.linear(f"lm_heads.{head}"))
        for head, row in enumerate(blocks)
    )
    parts.refuse_leftovers("blocks.")
    report = HeadReport(parts.unused_tensors, quant=weights.quant)
    return MedusaHeads(backbone, heads, weights.vocabulary, parts.num_bytes, report)


def build_meta(weights: HeadWeights, backbone: Backbone) -> MetaHeads:
    """Build Meta-style heads, or refuse them when they do not fit the backbone."""
    check_vocabulary(weights, backbone.config.vocab_size)
    spec = read_layer_spec(weights, backbone)
    check_hidden_size(weights, spec, backbone.config)
    found = [match[1] for match in map(_META_LAYER.fullmatch, weights.tensors) if match]
    num_depths = _count(weights, "heads", found)
    parts = HeadParts(weights, backbone.ops)
    prefixes = [f"extra_heads.{head}." for head in range(num_depths)]
    hidden = backbone.config.hidden_size
    shapes = [expected_layer(spec, hidden, prefix, parts.has) for prefix in prefixes]
    parts.check({name: shape for one in shapes for name, shape in one.items()})
    parts.refuse_leftovers("extra_heads.")
    return MetaHeads(
        backbone,
        tuple(build_layer(parts, prefix, spec) for prefix in prefixes),
        # The backbone's own last layer is the head of the next token; the others stand beside it.
        tap_layers=(backbone.config.num_layers - 1,),
        num_bytes=parts.num_bytes,
        report=HeadReport(parts.unused_tensors, quant=weights.quant),
    )


def make_medusa_config(
    config: ModelConfig, num_depths: int, num_blocks: int, draft_vocab_size: int | None = None
) -> dict[str, Any]:
    """Return the config.json of Medusa heads, as vLLM reads it."""
    return {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "truncated_vocab_size": draft_vocab_size or config.vocab_size,
        "num_heads": num_depths,
        "num_hidden_layers": num_blocks,
        "medusa_fc_bias": True,
    }


def make_meta_config(config: ModelConfig, num_depths: int) -> dict[str, Any]:
    """Return the config.json of Meta-style heads whose layers are like the backbone's."""
    return {
        "architectures": ["HeadlongMetaHeads"],
        "model_type": "headlong_meta_heads",
        "num_heads": num_depths,
        **layer_config(config),
    }


def _append(caches: Sequence[SequenceState], sizes: Sequence[int]) -> Rows:
    """Lay out rows of known sizes; these heads read states only, so the token ids stay 0."""
    return append_rows(caches, [np.zeros(size, dtype=np.int64) for size in sizes])


def _count(weights: HeadWeights, what: str, indices: Iterable[str]) -> int:
    """Return how many things are numbered 0, 1, 2 …; refuse gaps and absurd numbers."""
    numbers = sorted({int(index) for index in indices})
    if not numbers or numbers != list(range(len(numbers))) or len(numbers) > MAX_DRAFT_TOKENS:
        raise HeadError(
            f"{weights.source} numbers its {what} {numbers}.",
            f"They must run from 0 without gaps, to at most {MAX_DRAFT_TOKENS - 1}.",
        )
    return len(numbers)
