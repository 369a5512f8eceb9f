"""A model's own MTP layer in training, to draft deeper than it was made for.

In:  a teacher, the tensors of its first MTP module, a draft vocabulary.
Out: a head whose parameters are those tensors. The layer is built by the architecture's own file
and reads and carries what its family does; the same weights run at every depth. Embedding and LM
head are the model's, or the module's own; they stay as they are.
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
from headlong.train.chains import Chains
from headlong.train.learning import (
    LearningOps,
    LearningReader,
    as_learning,
    scales_and_biases,
)
from headlong.train.teacher import Teacher
from headlong.train.torch_head import TorchHead


class TorchNative(TorchHead):
    """The first MTP module of a model, in training."""

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
        learning = {name: as_learning(own[name], values) for name, values in parameters.items()}
        tensors = {**checkpoint.tensors, **learning}
        self._ops = LearningOps(teacher.ops)
        reader = LearningReader(replace(checkpoint, tensors=tensors), self._ops, num_layers)
        backbone = replace(teacher.backbone, ops=self._ops)
        head = self._head = build_native_nextn(native, backbone, reader)
        self._mixer = check_layer(head.layer, native.source)
        self._shape = attention_shape(self._mixer)
        parts = (head.embedding_norm, head.hidden_norm, head.fc, head.layer, head.norm)
        vectors = {id(values) for values in scales_and_biases(*parts)}
        names = {id(values): name for name, values in reader.arrays.items()}
        learned = {place: names[place] for place in vectors if place in names}
        self._ops.learn_vectors({place: parameters[name] for place, name in learned.items()})
        for name in sorted(self._ops.names | set(learned.values())):
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
        """Which of the layer's tensors have no gradient."""
        learned = {_name(attribute) for attribute, _ in self.named_parameters()}
        return sorted(self._own.keys() - learned - set(self._copies))

    def rollout(self, hidden: HiddenRows, token_ids: Tensor) -> Iterator[Tensor]:
        """Yield what is carried at depth 1, 2, …, chains fed with the true tokens."""
        head, ops, layer = self._head, self._ops, self._head.layer
        ops.refresh()
        batch, length = token_ids.shape
        chains = Chains(batch, length, ops, self._teacher.pointwise, self._mixer.rope)
        state = head.features(hidden)
        while True:
            x = head.fuse(state, self._embed(token_ids, chains.depth))
            heads = read_heads(ops, x, self._mixer, chains.angles())
            attended = chains.attend(heads.query, heads.key, heads.value, self._shape)
            x = add_read(ops, x, attended, self._mixer, heads.gate)
            state = head.carried(add_channels(ops, x, layer, None))
            yield state

    def logits(self, state: Tensor, depth: int) -> Tensor:
        """Score the draft vocabulary."""
        head = self._head
        normed = state if head.carries_normed else self._ops.norm(state, head.norm)
        logits = F.linear(normed, self._lm_rows)
        cap = head.logit_cap
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def scale_logits(self, scale: float) -> None:
        """Scale the norm before the LM head; the norm that reads a carried state undoes it."""
        name = f"blk.{self._teacher.config.num_layers}.nextn.shared_head_norm.weight"
        with torch.no_grad():
            self.get_parameter(_attribute(name)).mul_(scale)

    def as_weights(self, vocabulary: IntArray, float_type: FloatType) -> HeadWeights:
        """Return the module as it now is: matrices in `float_type`, vectors in float32."""
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

    def _embed(self, token_ids: Tensor, shift: int) -> Tensor:
        """Return the embedding of the token `shift` places on: (B * T, H)."""
        head, ids = self._head, token_ids.roll(-shift, 1)
        embedded = self._ops.embed(head.embedding, ids.reshape(-1), head.embedding_scale)
        if shift == 1 and head.zeroes_first_embedding:
            embedded.view(*ids.shape, -1)[:, 0] = 0
        return embedded


_SHARED = (".nextn.embed_tokens.weight", ".nextn.shared_head_head.weight")


def check_layer(layer: Layer, source: str) -> Attention | LatentAttention:
    """Return what a layer attends with; refuse one whose chains cannot be trained here."""
    mixer = layer.mixer
    if not isinstance(mixer, Attention | LatentAttention):
        found = "no mixer" if mixer is None else type(mixer).__name__
        raise HeadError(
            f"The MTP layer of {source} has {found}; chains of drafts are trained through "
            "attention, plain or latent.",
            "Train a head of its own instead: leave --from-native out.",
        )
    if isinstance(layer.channel, PerLayerInput) or isinstance(layer.second, PerLayerInput):
        raise HeadError(
            f"The MTP layer of {source} reads embeddings made for its place in the backbone "
            "(PerLayerInput), which drafts do not have.",
            "Train a head of its own instead: leave --from-native out.",
        )
    return mixer


def _attribute(name: str) -> str:
    """Return a tensor's name as one of torch's, which may have no dots."""
    return name.replace(".", "/")


def _name(attribute: str) -> str:
    return attribute.replace("/", ".")
