"""Prompts that a head is judged by, kept out of those it learns from.

In:  the prompts of the training files, and those of the bench file.
Out: the training prompts without any that ask the same or are about the same passage.
Compared by their words alone: case, punctuation and line breaks hide nothing. Whatever is made from
the prompts (blocks of code, passages, tools) is made from those that are kept.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from headlong.train.prompt_files import Prompt

RUN_WORDS = 20
"""Two texts that have so many words in a row in common are one text, or quote one."""

_WORD = re.compile(r"\w+")


def leave_out(
    prompts: Sequence[Prompt], held_out: Iterable[Prompt]
) -> tuple[list[Prompt], list[Prompt]]:
    """Return the prompts that share no text with those held out, and those that do."""
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
        is_same = hash(tuple(words)) in whole or any(run in runs for run in _runs(words))
        (left_out if is_same else kept).append(prompt)
    return kept, left_out


def count_sets(prompts: Iterable[Prompt]) -> dict[str, int]:
    """Return how many prompts of each set there are."""
    return dict(sorted(Counter(prompt.set_name for prompt in prompts).items()))


def _words(prompt: Prompt) -> list[str]:
    return [word for turn in prompt.turns for word in _WORD.findall(turn.casefold())]


def _runs(words: Sequence[str]) -> Iterator[int]:
    for first in range(len(words) - RUN_WORDS + 1):
        yield hash(tuple(words[first : first + RUN_WORDS]))
