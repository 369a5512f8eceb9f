"""A model's own MTP layer in training, for more depths than it was trained for.

In:  a teacher, the tensors of its first MTP module, a draft vocabulary.
Out: a head whose parameters are these tensors. The architecture's own builder makes the layer, so
its inputs and its carried state are those of the family. All depths use the same weights. Embedding
and LM head are the model's or the module's own, and stay frozen.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headlong.arrays import IntArray
from headlong.errors import HeadError
from headlong.heads.head_weights import FloatType, HeadWeights, store_array
from headlong.heads.native_nextn import build_native_nextn
from headlong.models.hidden import HiddenRows
from headlong.ops.blocks import Attention, LatentAttention, Layer, PerLayerInput
from headlong.ops.torch.attention import attention_shape
from headlong.ops.torch.sequences import add_channels, add_read, read_heads
from headlong.train.chains import Chains, StartRows
from headlong.train.teacher import Teacher
from headlong.train.torch_head import TorchHead
from headlong.train.trainable import (
    RecordingReader,
    TrainableOps,
    make_trainable,
    scales_and_biases,
)


class TorchNative(TorchHead):
    """The first MTP module of a model, in training."""

    reads_raw = True

    def __init__(self, teacher: Teacher, vocabulary: IntArray, native: HeadWeights) -> None:
        super().__init__()
        checkpoint, num_layers = native.checkpoint, teacher.config.num_layers
        assert checkpoint is not None
        own = {n: t for n, t in native.tensors.items() if n.startswith(f"blk.{num_layers}.")}
        parameters = {
            name: nn.Parameter(torch.from_numpy(tensor.to_float32().copy()).to(teacher.device))
            for name, tensor in own.items()
            if not name.endswith(_SHARED)
        }
        trainable = {n: make_trainable(own[n], values) for n, values in parameters.items()}
        tensors = {**checkpoint.tensors, **trainable}
        self._ops = TrainableOps(teacher.ops)
        reader = RecordingReader(replace(checkpoint, tensors=tensors), self._ops, num_layers)
        backbone = replace(teacher.backbone, ops=self._ops)
        head = self._head = build_native_nextn(native, backbone, reader)
        self._mixer = check_layer(head.layer, native.source)
        self._shape = attention_shape(self._mixer)
        parts = (head.embedding_norm, head.hidden_norm, head.fc, head.layer, head.norm)
        vectors = {id(values) for values in scales_and_biases(*parts)}
        names = {id(values): name for name, values in reader.arrays.items()}
        trained = {key: names[key] for key in vectors if key in names}
        self._ops.bind_vectors({key: parameters[name] for key, name in trained.items()})
        for name in sorted(self._ops.names | set(trained.values())):
            self.register_parameter(_attribute(name), parameters[name])
        self._teacher, self._native = teacher, native
        self._copies = [
            f"blk.{num_layers}.nextn.{part}.weight"
            for part, ours, theirs in (
                ("embed_tokens", head.embedding, backbone.embedding),
                ("shared_head_head", head.lm_head, backbone.lm_head),
            )
            if ours is theirs
        ]
        self._own = own
        rows = torch.from_numpy(vocabulary).to(teacher.device)
        self._lm_rows = head.lm_head.weight.values[rows].contiguous()

    @property
    def frozen(self) -> list[str]:
        """Names of the layer's tensors that are not trained."""
        trained = {_name(attribute) for attribute, _ in self.named_parameters()}
        return sorted(self._own.keys() - trained - set(self._copies))

    def rollout(
        self, hidden: HiddenRows, token_ids: Tensor, starts: StartRows | None = None
    ) -> Iterator[Tensor]:
        """Yield the carried states of depth 1, 2, …, with the true tokens as input."""
        head, ops, layer = self._head, self._ops, self._head.layer
        ops.refresh()
        batch, length = token_ids.shape
        chains = Chains(batch, length, ops, self._teacher.pointwise, self._mixer.rope, starts)
        state = head.features(hidden)
        while True:
            x = head.fuse(state, self._embed(token_ids, chains))
            heads = read_heads(ops, x, self._mixer, chains.angles())
            attended = chains.attend(heads.query, heads.key, heads.value, self._shape)
            gate = None if heads.gate is None else chains.own(heads.gate)
            x = add_read(ops, chains.own(x), attended, self._mixer, gate)
            state = head.carried(add_channels(ops, x, layer, None))
            yield state

    def logits(self, state: Tensor, depth: int) -> Tensor:
        """Return the logits over the draft vocabulary."""
        head = self._head
        normed = state if head.carries_normed else self._ops.norm(state, head.norm)
        logits = F.linear(normed, self._lm_rows)
        cap = head.logit_cap
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def scale_logits(self, scale: float) -> None:
        """Scale the norm before the LM head; the next depth's input norm cancels the factor."""
        name = f"blk.{self._teacher.config.num_layers}.nextn.shared_head_norm.weight"
        with torch.no_grad():
            self.get_parameter(_attribute(name)).mul_(scale)

    def as_weights(self, vocabulary: IntArray, float_type: FloatType) -> HeadWeights:
        """Return the module's current weights: matrices in `float_type`, vectors in float32."""
        tensors = {name: one for name, one in self._own.items() if name not in self._copies}
        for attribute, parameter in self.named_parameters():
            name = _name(attribute)
            values = parameter.detach().float().cpu().numpy()
            tensors[name] = store_array(
                name, values, float_type if parameter.ndim > 1 else "float32"
            )
        checkpoint = self._native.checkpoint
        assert checkpoint is not None
        return replace(
            self._native,
            config={"vocab_size": self._teacher.config.vocab_size},
            tensors=tensors,
            vocabulary=vocabulary,
            checkpoint=replace(checkpoint, tensors=tensors),
        )

    def _embed(self, token_ids: Tensor, chains: Chains) -> Tensor:
        """Return the embeddings of the tokens that the next step reads: (N, H)."""
        head = self._head
        embedded = self._ops.embed(head.embedding, chains.tokens(token_ids), head.embedding_scale)
        if chains.depth == 1 and head.zeroes_first_embedding:
            embedded.view(*token_ids.shape, -1)[:, 0] = 0
        return embedded


_SHARED = (".nextn.embed_tokens.weight", ".nextn.shared_head_head.weight")


def check_layer(layer: Layer, source: str) -> Attention | LatentAttention:
    """Return a layer's attention; refuse a layer that cannot be trained here."""
    mixer = layer.mixer
    if not isinstance(mixer, Attention | LatentAttention):
        found = "no mixer" if mixer is None else type(mixer).__name__
        raise HeadError(
            f"The MTP layer of {source} has {found}; only layers with attention, plain or latent, "
            "can be trained.",
            "Omit --from-native to train a new head instead.",
        )
    if isinstance(layer.channel, PerLayerInput) or isinstance(layer.second, PerLayerInput):
        raise HeadError(
            f"The MTP layer of {source} reads per-layer embeddings (PerLayerInput), which a draft "
            "does not have.",
            "Omit --from-native to train a new head instead.",
        )
    return mixer


def _attribute(name: str) -> str:
    """Return a tensor's name without dots, which torch's attribute names cannot have."""
    return name.replace(".", "/")


def _name(attribute: str) -> str:
    return attribute.replace("/", ".")
