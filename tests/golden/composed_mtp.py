"""MTP layers that transformers drops, put together from its own blocks as vLLM and SGLang do.

The norms, the projection of [embedding, hidden row] and the order are theirs; attention, MLPs and
experts are transformers' modules of the backbone. Nothing of Headlong is imported here.
"""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from native_mtp import record_drafts, split_experts
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.models.mimo_v2_flash import modeling_mimo_v2_flash as mimo
from transformers.models.nemotron_h import modeling_nemotron_h as nemotron


class ComposedMtp(nn.Module):  # type: ignore[misc]  # torch has no types here
    """[norm(embedding), norm(hidden row)], projected, through blocks, normed."""

    def __init__(self, model: Any, blocks: list[nn.Module], eps: float) -> None:
        super().__init__()
        size = model.config.hidden_size
        self.enorm, self.hnorm, self.final_layernorm = (nn.RMSNorm(size, eps) for _ in range(3))
        self.eh_proj = nn.Linear(2 * size, size, bias=False)
        self.blocks = nn.ModuleList(blocks)

    def read(self, model: Any, states: torch.Tensor, ids: list[int]) -> torch.Tensor:
        """Return what every row carries on: (T, H)."""
        embedded = model.get_input_embeddings()(torch.tensor(ids))
        x = self.eh_proj(torch.cat([self.enorm(embedded), self.hnorm(states)], -1))[None]
        for block in self.blocks:
            x = self.run_block(model, block, x)
        normed: torch.Tensor = self.final_layernorm(x[0])
        return normed

    def run_block(self, model: Any, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Run one block over a whole sequence."""
        raise NotImplementedError

    def published(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Return the tensors under their published names."""
        raise NotImplementedError


class NemotronMtp(ComposedMtp):
    """The pattern *E: attention without positions, then experts."""

    def __init__(self, model: Any) -> None:
        config = copy.deepcopy(model.config)
        config.layer_types = ["full_attention", "moe"]
        config._attn_implementation = "eager"
        blocks = [nemotron.NemotronHBlock(config, index) for index in range(2)]
        super().__init__(model, blocks, config.layer_norm_epsilon)

    def run_block(self, model: Any, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Run one block over a whole sequence."""
        result: torch.Tensor = block(x, attention_mask=_hidden(x.shape[1], None))
        return result

    def published(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Return the tensors under their published names."""
        for name, values in self.state_dict().items():
            if name.startswith("blocks."):
                yield f"mtp.layers.{name.removeprefix('blocks.')}", values
            else:
                part = 1 if name.startswith("final") else 0
                yield f"mtp.layers.{part}.{name}", values


class MimoMtp(ComposedMtp):
    """A layer with a sliding window, sinks and a dense MLP; the first of three modules."""

    def __init__(self, model: Any) -> None:
        config = copy.deepcopy(model.config)
        config.layer_types, config.mlp_layer_types = ["sliding_attention"], ["dense"]
        config._attn_implementation = "eager"
        super().__init__(model, [mimo.MiMoV2FlashDecoderLayer(config, 0)], config.rms_norm_eps)
        self.window = config.sliding_window

    def run_block(self, model: Any, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Run one block over a whole sequence."""
        positions = torch.arange(x.shape[1])[None]
        angles = model.model.rotary_emb(x, positions, "sliding_attention")
        mask = _hidden(x.shape[1], self.window)
        result: torch.Tensor = block(x, attention_mask=mask, position_embeddings=angles)
        return result

    def published(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Return the tensors under their published names."""
        for name, values in self.state_dict().items():
            rest = name.removeprefix("blocks.0.").replace("sinks", "attention_sink_bias")
            rest = rest.replace("post_attention_layernorm", "pre_mlp_layernorm")
            for module in range(3):  # only the first one drafts
                yield f"model.mtp.layers.{module}.{rest}", values


def _hidden(length: int, window: int | None) -> torch.Tensor:
    """Return the additive mask of what rows do not see."""
    distance = torch.arange(length)[:, None] - torch.arange(length)[None]
    is_seen = distance >= 0
    if window is not None:
        is_seen = is_seen & (distance < window)
    return torch.zeros(1, 1, length, length).masked_fill(~is_seen, float("-inf"))


_KINDS = {"nemotron": NemotronMtp, "mimo": MimoMtp}


def add_composed_mtp(
    folder: Path, model: Any, style: str, randomise: Callable[[Any], None], token_ids: list[int]
) -> list[dict[str, Any]]:
    """Write an MTP layer of random weights into a folder's safetensors file; return its drafts."""
    mtp = _KINDS[style](model).float().eval()
    mtp.config = model.config  # what `randomise` asks for
    randomise(mtp)
    file = folder / "model.safetensors"
    tensors = load_file(file) | dict(mtp.published())
    tensors = {name: values.clone() for name, values in split_experts(tensors).items()}
    save_file(tensors, file, metadata={"format": "pt"})
    return record_drafts(model, lambda states, ids: mtp.read(model, states, ids), token_ids)
