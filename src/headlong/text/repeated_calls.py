"""Repeated calls: end an answer that makes the same tool call twice.

In:  the answer so far, and the tokens that its grammar allows next.
Out: the tokens that remain allowed: once a call equals an earlier one, only those that close it,
then the end. Small models may repeat a call until `max_tokens` is used up, and no context-free
grammar can forbid it. Depends on the text alone, so drafts and batches change nothing. Calls
without tags are left to their grammar.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headlong.arrays import BoolArray
from headlong.text.reasoning import Reasoning, ReasoningReader


@dataclass(frozen=True, slots=True)
class RepeatBound:
    """Ends answers of one style of calls."""

    opening: bytes
    """What comes before the JSON of a call, up to its first bracket."""
    closing: bytes
    """What comes after its last bracket."""
    spell: Callable[[list[int]], bytes]
    """Returns the bytes of tokens."""
    reasoning: Reasoning | None = None
    """How the answer reasons first; calls in that are none."""

    def narrow(self, mask: BoolArray, text: bytes, only_eos: BoolArray) -> BoolArray:
        """Return which of the tokens in `mask` may follow `text`."""
        rest = self._rest(text)
        if rest is None:
            return mask
        if not rest:
            return only_eos
        narrowed = np.zeros_like(mask)
        for token_id in np.flatnonzero(mask).tolist():
            narrowed[token_id] = rest.startswith(self.spell([token_id]))
        return narrowed if narrowed.any() else mask

    def _rest(self, text: bytes) -> bytes | None:
        """Return what a repeated call at the end of `text` lacks; None if there is none."""
        if self.reasoning is not None:  # its tags are ASCII: any letters will do for bytes
            reader = ReasoningReader(self.reasoning)
            text = reader.push(text.decode("latin-1")).answer.encode("latin-1")
        start = text.find(self.opening)
        if start < 0:
            return None
        # JSON has line breaks between its parts only, so no argument can contain a border.
        calls = text[start + len(self.opening) :].split(self.closing + b"\n" + self.opening)
        last = calls.pop()
        for call in calls:
            # An object's text is never the beginning of another's: this one is complete.
            if last.startswith(call) and self.closing.startswith(last[len(call) :]):
                return self.closing[len(last) - len(call) :]
        return None
