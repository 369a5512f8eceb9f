"""The frozen backbone as the teacher of a head: the model of `models/`, on torch, whole batches.

In:  a checkpoint of any architecture; token ids of equally long sequences.
Out: the hidden rows a head learns from, and the weights it starts from, in bfloat16 on CUDA and
float32 on the CPU. Nothing of an architecture is defined here; decoding is `sampler`'s business.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headlong.errors import ArchitectureError
from headlong.models.hidden import HiddenRows
from headlong.models.model_config import ModelConfig
from headlong.models.registry import load_backbone
from headlong.models.transformer import Backbone
from headlong.ops.blocks import Attention, GatedMlp
from headlong.ops.torch_maths import make_row_maths
from headlong.ops.torch_ops import TorchOps
from headlong.train.pointwise import Pointwise, make_pointwise
from headlong.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class Teacher:
    """A frozen model on one device, and the maths that training does with it."""

    backbone: Backbone
    ops: TorchOps
    pointwise: Pointwise

    @property
    def config(self) -> ModelConfig:
        """The backbone's numbers."""
        return self.backbone.config

    @property
    def device(self) -> torch.device:
        """Where it lives."""
        return self.ops.device

    def mixed_precision(self) -> AbstractContextManager[Any]:
        """Return the context in which a head's float32 weights meet 16-bit rows on CUDA."""
        context: AbstractContextManager[Any] = torch.autocast(
            "cuda", dtype=torch.bfloat16, enabled=self.device.type == "cuda"
        )
        return context

    def forward(self, token_ids: Tensor, tap_layers: tuple[int, ...] = ()) -> HiddenRows:
        """Read whole sequences from position 0: (B, T) → rows in the same order."""
        backbone = self.backbone
        x, taps = self.ops.run_sequences(
            self.embed(token_ids), backbone.layers, token_ids.shape[1], tap_layers
        )
        return HiddenRows(x, self.ops.norm(x, backbone.final_norm), taps)

    def embed(self, token_ids: Tensor) -> Tensor:
        """Look up embeddings as the backbone does: (B, T) → (B * T, H)."""
        table, scale = self.backbone.embedding, self.backbone.embedding_scale
        return self.ops.embed(table, token_ids.reshape(-1), scale)

    def logits(self, normed: Tensor) -> Tensor:
        """Score the vocabulary, on the device: (N, H) → (N, V)."""
        return self.ops.project(normed, self.backbone.lm_head)

    def lm_rows(self, vocabulary: Tensor) -> Tensor:
        """Return the LM head's rows of some tokens: (V_draft,) → (V_draft, H)."""
        return self.backbone.lm_head.weight.values[vocabulary.to(self.device)]


def load_teacher(checkpoint: Checkpoint, device: torch.device, *, compile: bool) -> Teacher:
    """Unpack a checkpoint onto a device; its weights need no gradients."""
    ops = TorchOps(device, maths=make_row_maths(compile=compile), is_exact=False)
    backbone = load_backbone(checkpoint, ops).backbone
    layers, problem = backbone.layers, None
    if not all(isinstance(layer.mixer, Attention) for layer in layers):
        problem = "some of their layers are recurrent"
    elif not all(isinstance(layer.channel, GatedMlp) for layer in layers):
        problem = "some of their layers have experts"
    if problem is not None:
        raise ArchitectureError(
            f"Heads for {backbone.config.architecture} models cannot be trained here yet: "
            f"{problem}.",
            "Train heads for dense models all of whose layers attend.",
        )
    return Teacher(backbone, ops, make_pointwise(compile=compile))
