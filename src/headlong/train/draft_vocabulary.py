"""The draft vocabulary: the most frequent tokens of the backbone's answers.

In:  the answers; the draft tokens of an initial head. Out: the token ids that a head can draft, and
the share of the answers that they cover. Prompt tokens are not counted: they are never drafted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headlong.arrays import IntArray
from headlong.errors import RequestError
from headlong.train.shards import Answers


@dataclass(frozen=True, slots=True)
class DraftVocabulary:
    """The tokens a head can draft."""

    ids: IntArray  # (V_draft,) ascending
    ranks: IntArray  # (V_draft,) rank of each by frequency, 0 for the first
    coverage: float
    """Share of answer tokens that are in the vocabulary."""


def load_vocabulary(
    path: Path, required: IntArray | None, choose: Callable[[], DraftVocabulary]
) -> DraftVocabulary:
    """Load the vocabulary from a file; without the file, choose the vocabulary and save it.

    Args:
        path: The file.
        required: Draft tokens of the initial head, which the vocabulary must contain.
        choose: Chooses the vocabulary.
    """
    if path.is_file():
        with np.load(path) as stored:
            loaded = DraftVocabulary(stored["ids"], stored["ranks"], float(stored["coverage"]))
        if required is None or np.isin(required, loaded.ids).all():
            return loaded
        raise RequestError(
            f"The initial head drafts tokens that are not in {path}.",
            "Give another --work folder, or remove vocabulary.npz there to train with the head's "
            "own tokens and the most frequent others.",
        )
    chosen = choose()
    with path.open("wb") as file:
        np.savez(file, ids=chosen.ids, ranks=chosen.ranks, coverage=chosen.coverage)
    return chosen


def placeholder_ids(size: int, required: IntArray | None) -> IntArray:
    """Return stand-in token ids for estimates, before there are answers to choose by."""
    first = np.arange(size)
    return first if required is None else np.union1d(required, first)


def choose_vocabulary(
    answers: Answers, vocab_size: int, size: int, required: IntArray | None = None
) -> DraftVocabulary:
    """Choose `required` and the most frequent others, `size` in all; ties go to the lower id."""
    counts = count_tokens(answers, vocab_size)
    priorities = counts.copy()
    if required is not None:
        priorities[required] += counts.sum() + 1
        size = max(size, len(required))
    order = np.argsort(-priorities, kind="stable")[: min(size, vocab_size)]
    by_id = np.argsort(order)
    covered = int(counts[order].sum())
    return DraftVocabulary(order[by_id], by_id.astype(np.int64), covered / max(1, counts.sum()))


def count_tokens(answers: Answers, vocab_size: int) -> IntArray:
    """Count how often every token occurs in the answers."""
    positions = np.arange(len(answers.ids)) - np.repeat(answers.offsets[:-1], answers.lengths)
    is_answer = positions >= np.repeat(answers.prompt_lengths, answers.lengths)
    return np.bincount(answers.ids[is_answer], minlength=vocab_size).astype(np.int64)
