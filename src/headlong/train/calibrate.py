"""Calibrate: how sharp a head's logits should be, fitted once after training.

In:  a trained head, its backbone, sampled answers. Out: one number that its LM head is multiplied
with. A draft at a temperature above 0 stands where head and backbone, given the same noise, pick
the same token; a loss that looks sharply leaves the head's many unlikely tokens too likely for
that. Greedy drafts do not change: a factor moves no maximum.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headlong.arrays import FloatArray
from headlong.train.batches import make_batch
from headlong.train.loss import make_targets
from headlong.train.pointwise import noise
from headlong.train.shards import Answers
from headlong.train.teacher import Teacher
from headlong.train.torch_head import TorchHead

SCALES = (0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0)
NUM_ANSWERS = 96
_PER_BATCH = 16
_SEED = 17


@torch.no_grad()
def fit_logit_scale(
    teacher: Teacher, head: TorchHead, vocabulary: Tensor, answers: Answers
) -> float:
    """Return the factor at which most first drafts stand; 1 without sampled answers."""
    rng = np.random.default_rng(_SEED)
    is_useful = (answers.temperatures > 0) & (answers.lengths >= answers.prompt_lengths + 2)
    chosen = rng.permutation(np.flatnonzero(is_useful))[:NUM_ANSWERS]
    if not len(chosen):
        return 1.0
    score = teacher.scorer(vocabulary)
    counts = np.zeros(len(SCALES))
    for first in range(0, len(chosen), _PER_BATCH):
        members = chosen[first : first + _PER_BATCH]
        counts += _count_standing(teacher, head, score, _lay_out(answers, members))
    # The counts are flat around their best; the middle of those nearly as good moves least.
    good = np.flatnonzero(counts >= 0.998 * counts.max())
    return SCALES[int(good[len(good) // 2])]


def _lay_out(answers: Answers, members: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return ids, start rows, whose they are, and the temperature of each start row."""
    length = int(answers.lengths[members].max())
    heat: FloatArray = answers.temperatures[members]
    tokens = [answers.tokens(i) for i in members]
    batch = make_batch(tokens, answers.prompt_lengths[members].tolist(), heat, length)
    owned = batch.sequences >= 0
    sequences = torch.from_numpy(batch.sequences[owned])
    starts = torch.from_numpy(batch.starts[owned])
    return torch.from_numpy(batch.ids), starts, sequences, torch.from_numpy(heat)[sequences]


def _count_standing(
    teacher: Teacher,
    head: TorchHead,
    score: Callable[[Tensor], Tensor],
    laid_out: tuple[Tensor, Tensor, Tensor, Tensor],
) -> FloatArray:
    """Count, for every scale, the first drafts that equal the backbone's pick."""
    ids, starts, sequences, heat = (part.to(teacher.device) for part in laid_out)
    hidden = teacher.forward(ids, head.tap_layers)
    target = make_targets(hidden.normed, score, starts, sequences, 1).at_depth(1).float()
    with teacher.mixed_precision():
        state = next(head.rollout(hidden, ids))
        logits = head.logits(torch.index_select(state, 0, starts), 1).float()
    tokens = torch.arange(logits.shape[1], device=logits.device)
    gumbel = noise(sequences + _SEED, starts, tokens) * heat[:, None]
    picks = (target + gumbel).argmax(-1)
    stood = [((logits * scale + gumbel).argmax(-1) == picks).sum() for scale in SCALES]
    counts: FloatArray = torch.stack(stood).float().cpu().numpy()
    return counts
