"""Batches: answers of similar length, in seeded random order.

In:  answers from shards. Out: padded token ids, and the indices of all rows that a draft can start
from. The plan of an epoch is a pure function of seed and answers, so a resumed run continues with
exactly the next batch.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from headlong.arrays import FloatArray, IntArray
from headlong.train.shards import Answers

LENGTH_STEP = 64
ROW_STEP = 256
_NUM_PREFETCHED = 4


@dataclass(frozen=True, slots=True)
class Batch:
    """B sequences padded to T tokens."""

    ids: IntArray  # (B, T)
    starts: IntArray  # (N,) flat indices of the rows a draft can start from, by answer
    sequences: IntArray  # (N,) sequence of each start row; -1 for padding
    temperatures: FloatArray  # (B,) sampling temperatures
    answers: IntArray | None = None  # (B,) index of each answer, if they are answers to train on


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """The answers of one batch, and its padded length."""

    length: int
    members: IntArray


def plan_epoch(answers: Answers, tokens_per_step: int, seed: Sequence[int]) -> list[PlannedBatch]:
    """Group the answers by length into batches, in random order."""
    rng = np.random.default_rng(list(seed))
    padded = -(-answers.lengths // LENGTH_STEP) * LENGTH_STEP
    # A draft starts after one answer token and needs a second one as its target.
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
    """Pad sequences to a batch; drafts start from the last prompt token on."""
    ids = np.zeros((len(sequences), length), dtype=np.int64)
    starts: list[IntArray] = []
    for line, (tokens, prompt_length) in enumerate(zip(sequences, prompt_lengths, strict=True)):
        ids[line, : len(tokens)] = tokens
        # Row t reads token t + 1 and predicts token t + 2, which must exist.
        first = line * length
        starts.append(np.arange(first + prompt_length - 1, first + len(tokens) - 2))
    sizes = [len(part) for part in starts]
    padding = -sum(sizes) % ROW_STEP
    owners = np.repeat(np.arange(len(sequences)), sizes)
    return Batch(
        ids,
        np.concatenate([*starts, np.zeros(padding, dtype=np.int64)]),
        np.concatenate([owners, np.full(padding, -1)]),
        temperatures,
    )


def batch_of(answers: Answers, members: IntArray, length: int) -> Batch:
    """Make the batch of some answers, padded to `length`."""
    tokens = [answers.tokens(i) for i in members]
    prompt_lengths = answers.prompt_lengths[members].tolist()
    batch = make_batch(tokens, prompt_lengths, answers.temperatures[members], length)
    return replace(batch, answers=members)


def read_batches(answers: Answers, plan: Sequence[PlannedBatch]) -> Iterator[Batch]:
    """Make the batches of a plan; a thread prefetches a few."""

    ahead: deque[Future[Batch]] = deque()
    with ThreadPoolExecutor(1) as pool:
        for planned in plan:
            ahead.append(pool.submit(batch_of, answers, planned.members, planned.length))
            if len(ahead) > _NUM_PREFETCHED:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
