"""Simulate: the acceptance a head would reach, from the backbone's finished answers.

In:  answers with the seeds they were written with; a head. Out: `DecodeStats` for every draft
length K, walked along the answer as decoding would. A draft stands where it equals the answer's
token, drawn with the same noise; since a chain is only followed while it is right, feeding it the
true tokens changes nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headlong.arrays import IntArray
from headlong.decode.stats import DecodeStats, walk_rounds
from headlong.train.batches import LENGTH_STEP, Batch, make_batch
from headlong.train.draft_vocabulary import DraftVocabulary
from headlong.train.pointwise import noise
from headlong.train.sampler import Job
from headlong.train.teacher import Teacher
from headlong.train.torch_head import TorchHead

_ROWS_PER_BATCH = 16


@dataclass(frozen=True, slots=True)
class Sample:
    """An answer and how it came about."""

    job: Job
    ids: IntArray
    """Prompt and answer."""


@dataclass(frozen=True, slots=True)
class Simulator:
    """A head to be judged, maybe with fewer draft tokens than it has."""

    teacher: Teacher
    head: TorchHead
    vocabulary: DraftVocabulary
    max_depth: int
    vocabulary_cut: int | None = None
    """Draft from this many of the most frequent tokens only."""

    @torch.no_grad()
    def run(self, samples: Sequence[Sample]) -> dict[int, DecodeStats]:
        """Return what drafting with K = 1 … max_depth would have counted."""
        deepest = min(self.max_depth, self.head.max_depth or self.max_depth)
        counted = {k: DecodeStats() for k in range(1, deepest + 1)}
        useful = [s for s in samples if len(s.ids) >= len(s.job.prompt_ids) + 2]
        useful.sort(key=lambda sample: len(sample.ids))
        for first in range(0, len(useful), _ROWS_PER_BATCH):
            chunk = useful[first : first + _ROWS_PER_BATCH]
            length = -(-len(chunk[-1].ids) // LENGTH_STEP) * LENGTH_STEP
            temperatures = np.array([s.job.temperature for s in chunk], dtype=np.float32)
            prompt_lengths = [len(s.job.prompt_ids) for s in chunk]
            batch = make_batch([s.ids for s in chunk], prompt_lengths, temperatures, length)
            stands = self._find_standing(batch, chunk, deepest)
            for line in range(len(chunk)):
                _count(stands[:, batch.sequences == line], counted)
        return counted

    def _find_standing(
        self, batch: Batch, samples: Sequence[Sample], deepest: int
    ) -> NDArray[np.bool_]:
        """Tell for every depth and start row whether the draft token would stand: (K, N)."""
        device = self.teacher.device
        ids, starts = (torch.from_numpy(a).to(device) for a in (batch.ids, batch.starts))
        owners = torch.from_numpy(batch.sequences).to(device).clamp(min=0)
        seeds = torch.tensor([s.job.seed for s in samples], device=device)[owners]
        heat = torch.tensor([s.job.temperature for s in samples], device=device)[owners]
        vocabulary = torch.from_numpy(self.vocabulary.ids).to(device)
        hidden = self.teacher.forward(ids, self.head.tap_layers)
        flat = ids.reshape(-1)
        found: list[Tensor] = []
        with self.teacher.mixed_precision():
            states = self.head.rollout(hidden, ids)
            for depth in range(1, deepest + 1):
                logits = self._cut(self.head.logits(next(states)[starts], depth)).float()
                told = starts + 1 + depth  # the place of the token in question
                gumbel = noise(seeds, told % batch.ids.shape[1], vocabulary)
                drafted = vocabulary[(logits + heat[:, None] * gumbel).argmax(-1)]
                found.append(drafted == flat[told.clamp(max=len(flat) - 1)])
        stands: NDArray[np.bool_] = torch.stack(found).cpu().numpy()
        return stands

    def _cut(self, logits: Tensor) -> Tensor:
        if self.vocabulary_cut is None:
            return logits
        ranks = torch.from_numpy(self.vocabulary.ranks).to(logits.device)
        return logits.masked_fill(ranks >= self.vocabulary_cut, float("-inf"))


def table(results: Mapping[str, Mapping[int, DecodeStats]]) -> str:
    """Write acceptance lengths by task and K for people."""
    depths = sorted({k for stats in results.values() for k in stats})
    lines = [f"{'acceptance length':<22}" + "".join(f"   K={k}" for k in depths)]
    for name, stats in results.items():
        cells = "".join(f"{stats[k].acceptance_length:6.2f}" for k in depths)
        lines.append(f"{name:<22}{cells}")
    return "\n".join(lines)


def _count(stands: NDArray[np.bool_], counted: Mapping[int, DecodeStats]) -> None:
    """Count the rounds along one answer for every K: (depths, rows of the answer)."""
    num_depths, num_rows = stands.shape
    left = num_rows - np.arange(num_rows)
    standing = np.where(stands.all(axis=0), num_depths, stands.argmin(axis=0))
    counts = np.minimum(standing, left).tolist()
    for k, stats in counted.items():
        for row, num_accepted in walk_rounds(counts, k):
            stats.observe_round(("head",) * min(k, num_rows - row), num_accepted)
