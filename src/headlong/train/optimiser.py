"""Optimiser of a head: AdamW, or Muon for the matrices of its layer and AdamW for the rest.

In:  a head, a recipe. Out: updated parameters.
Muon orthogonalises the momentum of a matrix before each update. A step costs more and teaches more,
which pays where steps are few and large (docs/log/0099). The LM head and vectors stay with AdamW,
as is usual: rows of rare tokens have few gradients.
"""

from typing import Any

import torch
from torch import nn

from headlong.train.recipe import TrainingRecipe

_MUON_RATE = 3.0
"""Learning rate of Muon relative to that of AdamW, after scaling updates to AdamW's size."""


class Optimiser:
    """One or two optimisers of torch, stepped together."""

    def __init__(self, head: nn.Module, settings: TrainingRecipe) -> None:
        named = list(head.named_parameters())
        by_muon = [p for name, p in named if settings.optimiser == "muon" and _is_inner(name, p)]
        others = [p for _, p in named if not any(p is one for one in by_muon)]
        rate, decay = settings.learning_rate, settings.weight_decay
        groups = [
            {"params": [p for p in others if p.ndim > 1], "weight_decay": decay},
            {"params": [p for p in others if p.ndim == 1], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        adamw = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=True)
        self._parts: list[tuple[torch.optim.Optimizer, float]] = [(adamw, 1.0)]
        if by_muon:
            muon = torch.optim.Muon(
                by_muon, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw"
            )
            self._parts.append((muon, _MUON_RATE))

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for part, _ in self._parts:
            part.zero_grad(set_to_none=True)

    def step(self, learning_rate: float) -> None:
        """Update all parameters."""
        for part, factor in self._parts:
            for group in part.param_groups:
                group["lr"] = learning_rate * factor
            part.step()

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the state, for saving."""
        return [part.state_dict() for part, _ in self._parts]

    def load_state_dict(self, state: list[dict[str, Any]] | dict[str, Any]) -> None:
        """Load a saved state; before Muon it was that of AdamW alone."""
        state = [state] if isinstance(state, dict) else state
        for (part, _), saved in zip(self._parts, state, strict=True):
            part.load_state_dict(saved)


def _is_inner(name: str, parameter: nn.Parameter) -> bool:
    """Tell whether a parameter is a matrix of the head's layer: no vector, expert or LM head."""
    return parameter.ndim == 2 and not name.startswith(("lm_head.", "lm_heads."))
