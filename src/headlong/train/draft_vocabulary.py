"""The draft vocabulary: the tokens a backbone really writes, most frequent first.

In:  the backbone's own answers; the tokens of a head to go on from. Out: which token ids a head can
draft, and what share of the answers they cover. Prompts are not counted: they are never drafted.
"""

from dataclasses import dataclass

import numpy as np

from headlong.arrays import IntArray
from headlong.train.shards import Answers


@dataclass(frozen=True, slots=True)
class DraftVocabulary:
    """The tokens a head can draft."""

    ids: IntArray  # (V_draft,) ascending
    ranks: IntArray  # (V_draft,) place of each as it was chosen, 0 for the first
    coverage: float
    """Share of answer tokens that are among them."""


def choose_vocabulary(
    answers: Answers, vocab_size: int, size: int, kept: IntArray | None = None
) -> DraftVocabulary:
    """Choose `kept` and the most frequent others, `size` together; ties go to the lower id."""
    counts = count_tokens(answers, vocab_size)
    wanted = counts.copy()
    if kept is not None:
        wanted[kept] += counts.sum() + 1
        size = max(size, len(kept))
    order = np.argsort(-wanted, kind="stable")[: min(size, vocab_size)]
    by_id = np.argsort(order)
    covered = int(counts[order].sum())
    return DraftVocabulary(order[by_id], by_id.astype(np.int64), covered / max(1, counts.sum()))


def count_tokens(answers: Answers, vocab_size: int) -> IntArray:
    """Count how often every token occurs in the answers."""
    places = np.arange(len(answers.ids)) - np.repeat(answers.offsets[:-1], answers.lengths)
    is_answer = places >= np.repeat(answers.prompt_lengths, answers.lengths)
    return np.bincount(answers.ids[is_answer], minlength=vocab_size).astype(np.int64)
