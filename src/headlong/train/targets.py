"""Targets: which backbone row a draft at each depth is compared with. The shift, in one place.

The start rows of one answer lie one after the other. Row i at depth d speaks about the same token
as row i + 1 at depth d - 1, so the target of depth d is the target of depth 1, d - 1 rows on, as
long as that row belongs to the same answer.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Targets:
    """The backbone's logits over the draft vocabulary, for every start row and some rows beyond."""

    logits: Tensor  # (N + depths - 1, V_draft)
    sequences: Tensor  # (N,), -1 for rows that only fill up

    def at_depth(self, depth: int) -> Tensor:
        """Return the logits that `depth` (from 1) is judged by: (N, V_draft)."""
        return self.logits[depth - 1 : depth - 1 + len(self.sequences)]

    def is_valid(self, depth: int) -> Tensor:
        """Tell for every row whether its answer reaches that far: (N,)."""
        ahead = F.pad(self.sequences[depth - 1 :], (0, depth - 1), value=-1)
        return (self.sequences >= 0) & (ahead == self.sequences)


def make_targets(
    normed: Tensor, draft_lm_head: Tensor, starts: Tensor, sequences: Tensor, num_depths: int
) -> Targets:
    """Score the draft vocabulary with the frozen backbone, once for all depths.

    Args:
        normed: (B * T, H) the backbone's final hidden rows.
        draft_lm_head: (V_draft, H) the backbone's own LM head, draft tokens only.
        starts: (N,) start rows; the row after one has seen the token it is paired with.
        sequences: (N,) which answer each belongs to.
        num_depths: How many depths will be asked for.
    """
    rows = normed[torch.clamp(starts + 1, max=len(normed) - 1)]
    logits = F.linear(F.pad(rows, (0, 0, 0, num_depths - 1)), draft_lm_head)
    return Targets(logits, sequences)
