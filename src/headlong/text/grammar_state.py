"""The grammar state of one answer: which tokens may follow, and which must.

In:  token ids, one by one as they are settled, or a few ahead on trial.
Out: masks over the vocabulary, and spans that the grammar forces.
Fits `decode.constraint.Constraint` without knowing it. The parser can take tokens back, so looking
ahead costs a few microseconds, and what was computed ahead is kept for when it is settled: the
masks a draft was made with are those it is verified with.
"""

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np

from headlong.arrays import BoolArray
from headlong.errors import RequestError
from headlong.text.repeated_calls import RepeatBound

if TYPE_CHECKING:  # see grammar.py
    from llguidance import LLMatcher


class GrammarState:
    """The parser of one answer."""

    def __init__(
        self,
        matcher: "LLMatcher",
        make_matcher: Callable[[], "LLMatcher"],
        vocab_size: int,
        eos_ids: frozenset[int],
        bound: RepeatBound | None = None,
    ) -> None:
        """Begin an answer; `bound` ends it where it only repeats itself."""
        self._make_matcher = make_matcher
        self._bound = bound
        self._text = b""  # settled, as far as `bound` wants to know
        self._matcher = matcher
        self._eos_ids = eos_ids
        self._only_eos = np.zeros(vocab_size, dtype=np.bool_)
        self._only_eos[list(eos_ids)] = True
        self._words = np.zeros(-(-vocab_size // 32), dtype=np.int32)
        self._settled: list[int] = []
        self._has_ended = False
        self.lost: RequestError | None = None
        """Why the answer had to end before its grammar let it: the parser came to its bounds."""
        # Tokens the parser has read beyond the settled ones, and masks by what comes before them.
        self._ahead: list[int] = []
        self._masks: dict[tuple[int, ...], BoolArray] = {}

    def mask(self) -> BoolArray:
        """Return which tokens (V,) may come next."""
        mask = self.mask_after(())
        if mask is None:  # what was read ahead counts against the parser's bounds: once without
            self._begin_again()
            mask = self.mask_after(())
        if mask is not None:
            return mask
        lost = self._give_up()
        if not self._settled:
            raise lost
        return self._only_eos

    def mask_after(self, token_ids: Sequence[int]) -> BoolArray | None:
        """Return what `mask` would be after `token_ids`; None if the grammar forbids these."""
        if self._has_ended:
            return self._only_eos
        text_ids = tuple(takewhile(lambda token_id: token_id not in self._eos_ids, token_ids))
        if text_ids not in self._masks:
            mask = self._compute_mask(text_ids)
            if mask is None:
                return None
            self._masks[text_ids] = mask
        mask = self._masks[text_ids]
        if len(text_ids) == len(token_ids):
            return mask
        can_end = mask[token_ids[len(text_ids)]]
        return self._only_eos if can_end else None

    def push(self, token_id: int) -> None:
        """Move on by one token that the mask allowed."""
        if self._has_ended:
            return  # only for those who go on past the end of text
        if token_id in self._eos_ids:
            self._has_ended = True
            return
        if self._ahead[:1] == [token_id]:
            del self._ahead[0]
        else:
            self._move_to(())
            if not self._matcher.consume_token(token_id):
                self._begin_again()
                if not self._matcher.consume_token(token_id):
                    self._give_up()
        self._settled.append(token_id)
        if self._bound is not None:
            self._text += self._bound.spell([token_id])
        self._masks = {
            ahead[1:]: mask for ahead, mask in self._masks.items() if ahead[:1] == (token_id,)
        }

    def forced(self) -> Sequence[int]:
        """Return the tokens the grammar leaves no choice about."""
        if self._has_ended or not self._move_to(()):
            return ()
        return self._matcher.compute_ff_tokens()

    def accepts(self, token_id: int) -> bool:
        """Tell whether the grammar allows the text of a token, however forced text is cut."""
        if self._has_ended or not self._move_to(()):
            return self._has_ended and token_id in self._eos_ids
        if token_id in self._eos_ids:
            return self._matcher.is_accepting()
        return self._matcher.validate_tokens([token_id]) == 1

    def num_allowed(self, token_ids: Sequence[int]) -> int:
        """Return how many leading tokens of `token_ids` the grammar allows."""
        for place, token_id in enumerate(token_ids):
            mask = self.mask_after(token_ids[:place])
            if mask is None or not mask[token_id]:
                return place
        return len(token_ids)

    def _compute_mask(self, token_ids: tuple[int, ...]) -> BoolArray | None:
        if not self._move_to(token_ids):
            return None
        self._matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)
        if self._matcher.is_error():
            return None
        bits = np.unpackbits(
            self._words.view(np.uint8), count=len(self._only_eos), bitorder="little"
        )
        mask = bits.view(np.bool_)
        if self._bound is None:
            return mask
        text = self._text + self._bound.spell(list(token_ids))
        return self._bound.narrow(mask, text, self._only_eos)

    def _move_to(self, token_ids: tuple[int, ...]) -> bool:
        """Move the parser `token_ids` ahead of the settled tokens; return whether it can."""
        if self._matcher.is_error():
            self._begin_again()
        kept = 0
        while kept < min(len(self._ahead), len(token_ids)) and (
            self._ahead[kept] == token_ids[kept]
        ):
            kept += 1
        self._matcher.rollback(len(self._ahead) - kept)
        del self._ahead[kept:]
        for token_id in token_ids[kept:]:
            if self._matcher.try_consume_tokens([token_id]) != 1:
                return False
            self._ahead.append(token_id)
        return not self._matcher.is_error()

    def _begin_again(self) -> None:
        """Read the settled tokens again, with a new parser.

        One that failed while looking ahead stays failed, and its copies share what they have spent
        of the bounds: drafts and earlier answers must not decide where this answer ends.
        """
        self._matcher = self._make_matcher()
        self._ahead = []
        self._matcher.consume_tokens(self._settled)

    def _give_up(self) -> RequestError:
        """End an answer that cannot go on: bounds of the parser, or a schema nothing fits."""
        reason = self._matcher.get_error().partition("\n")[0]
        self.lost = RequestError(
            f"The grammar cannot be followed beyond {len(self._settled)} tokens: {reason}.",
            "Use a simpler schema: fewer optional parts, shorter patterns, smaller bounds.",
        )
        self._has_ended = True
        return self.lost
