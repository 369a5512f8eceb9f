"""Gemma 4's assistant: a small decoder whose layers read the backbone's own keys and values.

    x = pre([embed(token), h])              both as wide as the backbone's rows
    y = norm(layers(x)), logits = lm_head(y), and post(y) is carried on as the next h

Sliding layers attend to the keys and values of the backbone's last sliding layer that keeps any,
the others to those of its last full layer. All steps of a round stand at the backbone's last row,
but turn as at the position behind it, that of the newest token: so do transformers and llama.cpp
(vLLM and SGLang turn as at the last row). A window counts from the newest token's position, whose
own key is not there: of W positions W - 1 are left, as the backbone's own row there will see, and
as in llama.cpp. transformers reads W + 1 of them; inside the window all agree.

In:  a checkpoint of its own, safetensors or GGUF. Out: a head, or a refusal with the reason.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from headlong.arrays import FloatArray, IntArray
from headlong.cache.sequence_state import SequenceState
from headlong.errors import HeadError
from headlong.heads.head import HeadReport
from headlong.heads.head_weights import HEAD_REMEDY, HeadWeights
from headlong.models.gemma4 import assistant_layers
from headlong.models.hidden import HiddenRows
from headlong.models.llama import build_norm
from headlong.models.model_config import ModelConfig, read_config
from headlong.models.transformer import Backbone
from headlong.ops.blocks import Attention, Layer, Linear, Norm, SharedAttention
from headlong.ops.op_set import Array, Ops, Rows, Span
from headlong.weights.checkpoint import Checkpoint
from headlong.weights.weight_reader import WeightReader

_CENTROIDS = ("masked_embedding.", "masked_embd")
"""How tensors are called that choose which tokens are scored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma4Assistant:
    """An assistant on its backbone; A is its own hidden size."""

    backbone: Backbone
    layers: tuple[Layer, ...]
    pre: Linear  # (A, 2 * H)
    post: Linear  # (H, A)
    norm: Norm
    lm_head: Linear  # (V, A)
    num_bytes: int
    report: HeadReport
    vocabulary: IntArray | None = None
    tap_layers: tuple[int, ...] = ()
    kind: str = "assistant"

    @property
    def ops(self) -> Ops:
        """The backend it runs on."""
        return self.backbone.ops

    def make_cache(self) -> SequenceState:
        """Return a state that counts rows and holds none."""
        return SequenceState(())

    def features(self, hidden: HiddenRows) -> Array:
        """Return what the backbone's LM head reads: (N, H)."""
        return hidden.normed

    def step(
        self,
        state: Array,
        token_ids: IntArray,
        caches: Sequence[SequenceState],
        positions: Sequence[int],
    ) -> Array:
        """Run over one row of every sequence: (N, H) states and the tokens behind them → (N, A)."""
        both = self.ops.join([self.backbone.embed(token_ids), state], -1)
        spans = tuple(Span(row, 1, position) for row, position in enumerate(positions))
        read = [layer.mixer for layer in self.layers]
        states = [
            [cache.layers[mixer.source] for mixer in read if isinstance(mixer, SharedAttention)]
            for cache in caches
        ]
        x = self.ops.project(both, self.pre)
        y, _ = self.ops.run_layers(x, self.layers, states, Rows(token_ids, spans))
        return self.ops.norm(y, self.norm)

    def logits(self, result: Array) -> FloatArray:
        """Score the vocabulary from what `step` returned: (N, A) → (N, V)."""
        return self.ops.to_host(self.ops.project(result, self.lm_head))

    def carry(self, result: Array) -> Array:
        """Turn what `step` returned into the states of the next step: (N, A) → (N, H)."""
        return self.ops.project(result, self.post)


def read_assistant(checkpoint: Checkpoint) -> HeadWeights:
    """Return the weights of an assistant's checkpoint."""
    source, metadata = str(checkpoint.path), checkpoint.metadata
    config = metadata if checkpoint.format == "safetensors" else {}
    return HeadWeights(
        "assistant", config, checkpoint.tensors, source=source, checkpoint=checkpoint
    )


def build_assistant(head: HeadWeights, backbone: Backbone) -> Gemma4Assistant:
    """Build an assistant on its backbone, or refuse it when it does not fit."""
    checkpoint = head.checkpoint
    assert checkpoint is not None, "an assistant has a checkpoint of its own"
    config = read_config(checkpoint)
    sources = _find_sources(head, config, backbone)
    hidden, own = backbone.config.hidden_size, config.hidden_size
    pack = partial(backbone.ops.matrix, quant=head.quant)
    weights = WeightReader(checkpoint, pack, config.num_layers)
    pre = weights.matrix("nextn.pre_projection.weight", (own, 2 * hidden))
    post = weights.matrix("nextn.post_projection.weight", (hidden, own))
    is_tied = not weights.has("output.weight")
    table = "token_embd.weight" if is_tied else "output.weight"
    lm_head = Linear(weights.matrix(table, (config.vocab_size, own)))
    layers = assistant_layers(config, weights, {kind: i for kind, (i, _) in sources.items()})
    norm = build_norm(config, weights, "output_norm.weight", own)
    report = weights.finish()
    unused = tuple(name for name in report.left_over if name != "token_embd.weight")
    return Gemma4Assistant(
        backbone=backbone,
        layers=tuple(_on_backbone(layer, sources) for layer in layers),
        pre=Linear(pre),
        post=Linear(post),
        norm=norm,
        lm_head=lm_head,
        num_bytes=sum(checkpoint.tensors[name].num_bytes for name in report.used),
        report=HeadReport(unused, _notes(unused), head.quant),
    )


_Sources = Mapping[bool, tuple[int, Attention]]
"""The backbone's layers that are read by sliding layers (True) and by the others (False)."""


def _find_sources(head: HeadWeights, config: ModelConfig, backbone: Backbone) -> _Sources:
    """Find the layers whose keys and values it reads; refuse a backbone without fitting ones."""
    found: dict[bool, tuple[int, Attention]] = {}
    for index, layer in enumerate(backbone.layers):
        if isinstance(layer.mixer, Attention):
            found[layer.mixer.window is not None] = (index, layer.mixer)
    ours, hidden = backbone.config, backbone.config.hidden_size
    post = head.tensors.get("nextn.post_projection.weight")
    made_for = hidden if post is None or not post.shape else post.shape[0]
    sizes = config.gemma4
    assert sizes is not None, "its configuration was read as one"
    is_like = ours.architecture == "gemma4" and set(found) == {True, False}
    if not is_like or made_for != hidden or config.vocab_size != ours.vocab_size:
        raise HeadError(
            f"{head.source} is an assistant for Gemma 4 models with hidden states of {made_for} "
            f"numbers and {config.vocab_size:,} tokens; this is a {ours.architecture} model with "
            f"{hidden} and {ours.vocab_size:,}.",
            HEAD_REMEDY,
        )
    for is_local, dim in ((True, config.head_dim), (False, sizes.global_head_dim)):
        source = found[is_local][1]
        if source.head_dim != dim or config.num_heads % source.num_kv_heads:
            raise HeadError(
                f"{head.source} has {config.num_heads} heads of size {dim} where the backbone has "
                f"{source.num_kv_heads} key/value heads of size {source.head_dim}.",
                HEAD_REMEDY,
            )
    return found


def _on_backbone(layer: Layer, sources: _Sources) -> Layer:
    """Fit a layer to the keys and values it reads."""
    mixer = layer.mixer
    assert isinstance(mixer, SharedAttention), "an assistant keeps no keys of its own"
    is_local = mixer.window is not None
    num_kv_heads = sources[is_local][1].num_kv_heads
    window = None if mixer.window is None else max(mixer.window - 1, 1)
    return replace(layer, mixer=replace(mixer, num_kv_heads=num_kv_heads, window=window, ahead=1))


def _notes(unused: Sequence[str]) -> tuple[str, ...]:
    if not any(part in name for name in unused for part in _CENTROIDS):
        return ()
    return ("Its centroids are not used: it scores all tokens, which takes longer.",)
