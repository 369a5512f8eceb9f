"""Teacher: the frozen backbone of a head, in torch, over whole batches.

In:  a checkpoint of any architecture; token ids of equally long sequences.
Out: the hidden rows that a head is trained on, in bfloat16 where the device multiplies it, else in
     float32.
The architecture is that of `models/`; decoding is in `sampler.py`.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headlong.errors import RequestError
from headlong.models.hidden import HiddenRows
from headlong.models.model_config import ModelConfig
from headlong.models.registry import load_backbone
from headlong.models.transformer import Backbone
from headlong.ops.blocks import Experts
from headlong.ops.torch.maths import make_row_maths
from headlong.ops.torch.ops import TorchOps
from headlong.ops.torch.sequences import Sequences, run_sequences
from headlong.train.pointwise import Pointwise, make_pointwise
from headlong.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class Teacher:
    """A frozen model on one device, with the functions that training needs."""

    backbone: Backbone
    ops: TorchOps
    pointwise: Pointwise
    is_compiled: bool
    """Whether pointwise functions are fused by torch.compile."""

    @property
    def config(self) -> ModelConfig:
        """The backbone's configuration."""
        return self.backbone.config

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.ops.device

    def mixed_precision(self) -> AbstractContextManager[Any]:
        """Return the autocast context for a head's float32 weights and 16-bit rows."""
        context: AbstractContextManager[Any] = torch.autocast(
            self.device.type, dtype=torch.bfloat16, enabled=self.ops.dtype == torch.bfloat16
        )
        return context

    def forward(self, token_ids: Tensor, tap_layers: tuple[int, ...] = ()) -> HiddenRows:
        """Run whole sequences from position 0: (B, T) → rows in the same order."""
        backbone, x = self.backbone, self.embed(token_ids)
        sequences = Sequences(token_ids.shape[1], self.per_layer_inputs(token_ids, x))
        x, taps = run_sequences(self.ops, x, backbone.layers, sequences, tap_layers)
        return HiddenRows(x, self.ops.norm(x, backbone.final_norm), taps)

    def embed(self, token_ids: Tensor) -> Tensor:
        """Look up embeddings as the backbone does: (B, T) → (B * T, H)."""
        table, scale = self.backbone.embedding, self.backbone.embedding_scale
        return self.ops.embed(table, token_ids.reshape(-1), scale)

    def per_layer_inputs(self, token_ids: Tensor, embedded: Tensor) -> Tensor | None:
        """Return the per-layer embeddings of tokens, for models that have them: (N, L * P)."""
        if self.backbone.per_layer is None:
            return None
        rows: Tensor = self.backbone.per_layer_rows(token_ids.reshape(-1).cpu().numpy(), embedded)
        return rows

    def logits(self, normed: Tensor) -> Tensor:
        """Return the logits over the vocabulary: (N, H) → (N, V)."""
        return self.cap(self.ops.project(normed, self.backbone.lm_head))

    def cap(self, logits: Tensor) -> Tensor:
        """Apply the backbone's logit cap, if it has one."""
        cap = self.backbone.logit_cap
        return logits if cap is None else torch.tanh(logits / cap) * cap

    @property
    def has_fixed_shapes(self) -> bool:
        """Whether the shapes of a step do not depend on the rows, as CUDA graphs require.

        They do with experts, which get varying rows, and with per-layer embeddings from the host.
        """
        channels = [layer.channel for layer in self.backbone.layers]
        return self.backbone.per_layer is None and not any(
            isinstance(channel, Experts) for channel in channels
        )

    def lm_rows(self, vocabulary: Tensor) -> Tensor:
        """Return the LM head's rows of the given tokens: (V_draft,) → (V_draft, H)."""
        return self.backbone.lm_head.weight.values[vocabulary.to(self.device)]

    def scorer(self, vocabulary: Tensor) -> Callable[[Tensor], Tensor]:
        """Return a function for the logits of the given tokens: (N, H) → (N, V_draft)."""
        rows = self.lm_rows(vocabulary).contiguous()
        return lambda normed: self.cap(F.linear(normed, rows))


def load_teacher(
    checkpoint: Checkpoint,
    device: torch.device,
    *,
    compile: bool,
    dtype: torch.dtype | None = None,
) -> Teacher:
    """Load a checkpoint onto a device, unquantised and without gradients."""
    ops = TorchOps(device, dtype, make_row_maths(compile=compile), is_exact=False)
    backbone = load_backbone(checkpoint, ops).backbone
    return Teacher(backbone, ops, make_pointwise(compile=compile), is_compiled=compile)


def find_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the type of a name: float32, bfloat16, or auto for the fastest on the device."""
    if name != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]
    has_bf16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if device.type == "cuda" or has_bf16 else torch.float32


def can_compile(device: torch.device) -> bool:
    """Return whether torch.compile works on the device; on a CPU it needs a C++ compiler."""
    if device.type == "cuda":
        return True
    try:
        torch.compile(torch.neg)(torch.zeros(2))
    except Exception:  # whatever the compiler or its headers are missing
        return False
    return True


def find_device(name: str) -> torch.device:
    """Return the device of a name: auto, cuda or cpu."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise RequestError("There is no CUDA device.", "Use --device cpu, or another machine.")
    return torch.device(name)
