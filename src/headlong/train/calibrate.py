"""Calibrate: fits the scale of a head's logits after training.

In:  a trained head, its backbone, sampled answers. Out: a factor for its LM head.
A draft token at a temperature above 0 is accepted if head and backbone pick the same token with the
same noise. A loss at a low temperature leaves unlikely tokens too likely for that, which a factor
corrects. It does not change the argmax, so greedy drafts stay the same.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from headlong.arrays import FloatArray
from headlong.models.hidden import HiddenRows
from headlong.train.batches import Batch, batch_of
from headlong.train.chains import place_starts
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
    teacher: Teacher,
    head: TorchHead,
    vocabulary: Tensor,
    answers: Answers,
    hidden_rows: Callable[[Batch, Tensor], HiddenRows],
) -> float:
    """Return the factor with the most accepted drafts at depth 1; 1 without sampled answers.

    `hidden_rows` returns the backbone's rows of a batch, given its ids on the device.
    """
    rng = np.random.default_rng(_SEED)
    is_useful = (answers.temperatures > 0) & (answers.lengths >= answers.prompt_lengths + 2)
    chosen = rng.permutation(np.flatnonzero(is_useful))[:NUM_ANSWERS]
    if not len(chosen):
        return 1.0
    score = teacher.scorer(vocabulary)
    counts = np.zeros(len(SCALES))
    for first in range(0, len(chosen), _PER_BATCH):
        members = chosen[first : first + _PER_BATCH]
        batch = batch_of(answers, members, int(answers.lengths[members].max()))
        ids = torch.from_numpy(batch.ids).to(teacher.device)
        counts += _count_accepted(teacher, head, score, batch, hidden_rows(batch, ids))
    # The maximum is flat: take the middle of the nearly best scales, which is the most stable.
    good = np.flatnonzero(counts >= 0.998 * counts.max())
    return SCALES[int(good[len(good) // 2])]


def _count_accepted(
    teacher: Teacher,
    head: TorchHead,
    score: Callable[[Tensor], Tensor],
    batch: Batch,
    hidden: HiddenRows,
) -> FloatArray:
    """Count, for every scale, the draft tokens of depth 1 that equal the backbone's pick."""
    is_row = batch.sequences >= 0
    ids, sequences = (
        torch.from_numpy(array).to(teacher.device) for array in (batch.ids, batch.sequences[is_row])
    )
    starts = place_starts(
        batch.starts[is_row], batch.sequences[is_row], len(batch.ids), teacher.device
    )
    temperatures = torch.from_numpy(batch.temperatures).to(teacher.device)[sequences]
    target = make_targets(hidden.normed, score, starts.rows, sequences, 1).at_depth(1).float()
    with teacher.mixed_precision():
        state = next(head.rollout(hidden, ids, starts))
        logits = head.logits(state, 1).float()
    tokens = torch.arange(logits.shape[1], device=logits.device)
    gumbel = noise(sequences + _SEED, starts.rows, tokens) * temperatures[:, None]
    picks = (target + gumbel).argmax(-1)
    accepted = [((logits * scale + gumbel).argmax(-1) == picks).sum() for scale in SCALES]
    counts: FloatArray = torch.stack(accepted).float().cpu().numpy()
    return counts
