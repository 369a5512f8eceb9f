"""Batches: answers of about the same length side by side, in an order that a seed decides.

In:  answers from shards. Out: padded token ids and, for every place a draft can start from, where
it lies. The plan of an epoch is a pure function of seed and answers, so that a resumed run goes on
with exactly the batch it would have seen.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headlong.arrays import FloatArray, IntArray
from headlong.train.shards import Answers

LENGTH_STEP = 64
ROW_STEP = 256
_READY = 4


@dataclass(frozen=True, slots=True)
class Batch:
    """B sequences padded to T tokens."""

    ids: IntArray  # (B, T)
    starts: IntArray  # (N,) flat index of every row a draft can start from, answer by answer
    sequences: IntArray  # (N,) which sequence each belongs to; -1 fills up to a round number
    temperatures: FloatArray  # (B,) at which each was written


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """Which answers go into one batch, and how long it is."""

    length: int
    members: IntArray


def plan_epoch(answers: Answers, tokens_per_step: int, seed: Sequence[int]) -> list[PlannedBatch]:
    """Divide the answers into batches of similar length, in random order."""
    rng = np.random.default_rng(list(seed))
    padded = -(-answers.lengths // LENGTH_STEP) * LENGTH_STEP
    # A draft starts at a known token and needs one more to be judged by.
    is_useful = answers.lengths - answers.prompt_lengths >= 2
    plan: list[PlannedBatch] = []
    for length in np.unique(padded[is_useful]).tolist():
        members = rng.permutation(np.flatnonzero((padded == length) & is_useful))
        size = max(1, tokens_per_step // length)
        for first in range(0, len(members), size):
            plan.append(PlannedBatch(length, members[first : first + size]))
    return [plan[i] for i in rng.permutation(len(plan))]


def make_batch(
    sequences: Sequence[NDArray[np.integer]],
    prompt_lengths: Sequence[int],
    temperatures: FloatArray,
    length: int,
) -> Batch:
    """Lay sequences out; drafts start from the last prompt token on."""
    ids = np.zeros((len(sequences), length), dtype=np.int64)
    starts: list[IntArray] = []
    for line, (tokens, prompt_length) in enumerate(zip(sequences, prompt_lengths, strict=True)):
        ids[line, : len(tokens)] = tokens
        # Row t reads token t + 1 and speaks about token t + 2, which must be there.
        first = line * length
        starts.append(np.arange(first + prompt_length - 1, first + len(tokens) - 2))
    sizes = [len(part) for part in starts]
    fill = -sum(sizes) % ROW_STEP
    owners = np.repeat(np.arange(len(sequences)), sizes)
    return Batch(
        ids,
        np.concatenate([*starts, np.zeros(fill, dtype=np.int64)]),
        np.concatenate([owners, np.full(fill, -1)]),
        temperatures,
    )


def read_batches(answers: Answers, plan: Sequence[PlannedBatch]) -> Iterator[Batch]:
    """Make the batches of a plan, a few ahead in a thread of their own."""

    def make(planned: PlannedBatch) -> Batch:
        members = planned.members
        tokens = [answers.tokens(i) for i in members]
        prompt_lengths = answers.prompt_lengths[members].tolist()
        return make_batch(tokens, prompt_lengths, answers.temperatures[members], planned.length)

    ahead: deque[Future[Batch]] = deque()
    with ThreadPoolExecutor(1) as pool:
        for planned in plan:
            ahead.append(pool.submit(make, planned))
            if len(ahead) > _READY:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
