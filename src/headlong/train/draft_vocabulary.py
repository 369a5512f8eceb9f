"""The draft vocabulary: the tokens a backbone really writes, most frequent first.

In:  the backbone's own answers; the tokens of a head to go on from. Out: which token ids a head can
draft, and what share of the answers they cover. Prompts are not counted: they are never drafted.
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
    ranks: IntArray  # (V_draft,) place of each as it was chosen, 0 for the first
    coverage: float
    """Share of answer tokens that are among them."""


def keep_vocabulary(
    path: Path, given: IntArray | None, choose: Callable[[], DraftVocabulary]
) -> DraftVocabulary:
    """Return the vocabulary that a file keeps, else choose it once; later calls must keep it.

    Args:
        path: Where it is kept.
        given: The draft tokens of a head that training goes on from, which must be among them.
        choose: Chooses it.
    """
    if path.is_file():
        with np.load(path) as stored:
            kept = DraftVocabulary(stored["ids"], stored["ranks"], float(stored["coverage"]))
        if given is None or np.isin(given, kept.ids).all():
            return kept
        raise RequestError(
            f"The head to go on from drafts tokens that {path} does not list.",
            "They would be lost. Give another --work folder, or remove vocabulary.npz there to "
            "train with the head's own and the most frequent others.",
        )
    chosen = choose()
    with path.open("wb") as file:
        np.savez(file, ids=chosen.ids, ranks=chosen.ranks, coverage=chosen.coverage)
    return chosen


def foresee(size: int, given: IntArray | None) -> IntArray:
    """Return tokens as many as will be chosen, before there are answers to choose by."""
    first = np.arange(size)
    return first if given is None else np.union1d(given, first)


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
