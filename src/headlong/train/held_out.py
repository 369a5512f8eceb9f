"""Decontamination: removes training prompts that overlap with evaluation prompts.

In:  the prompts of the training files, and those of the bench file.
Out: the training prompts without those that are the same or share a passage.
Only words are compared, not case, punctuation or line breaks. Composed questions (code blocks,
passages, tools) are made from the remaining prompts only.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from headlong.train.prompt_files import Prompt

RUN_WORDS = 20
"""Two texts with this many consecutive words in common count as overlapping."""

_WORD = re.compile(r"\w+")


def leave_out(
    prompts: Sequence[Prompt], held_out: Iterable[Prompt]
) -> tuple[list[Prompt], list[Prompt]]:
    """Split prompts into those that share no text with the held-out ones and those that do."""
    whole: set[int] = set()
    runs: set[int] = set()
    for prompt in held_out:
        words = _words(prompt)
        whole.add(hash(tuple(words)))
        runs.update(_runs(words))
    kept: list[Prompt] = []
    left_out: list[Prompt] = []
    for prompt in prompts:
        words = _words(prompt)
        overlaps = hash(tuple(words)) in whole or any(run in runs for run in _runs(words))
        (left_out if overlaps else kept).append(prompt)
    return kept, left_out


def count_sets(prompts: Iterable[Prompt]) -> dict[str, int]:
    """Return how many prompts of each set there are."""
    return dict(sorted(Counter(prompt.set_name for prompt in prompts).items()))


def _words(prompt: Prompt) -> list[str]:
    return [word for turn in prompt.turns for word in _WORD.findall(turn.casefold())]


def _runs(words: Sequence[str]) -> Iterator[int]:
    for first in range(len(words) - RUN_WORDS + 1):
        yield hash(tuple(words[first : first + RUN_WORDS]))
