"""Spelling: token ids for the text of engines that give no ids, or not all of them.

In:  text. Out: tokens that spell exactly these bytes, so that the answer's text is the engine's to
the letter wherever it was cut. They need not be the tokens that the model picked.
"""

from functools import cache, cached_property

from headlong.errors import GarbledError
from headlong.text.tokenizer import Tokenizer

_UNFINISHED = b"\xf0\x9f\xa6"
"""How a character begins that was cut: whatever it was, it shows as U+FFFD."""


class Speller:
    """Spells bytes with the tokens of one model."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def spell(self, text: str) -> tuple[int, ...]:
        """Return long tokens that spell `text`."""
        data, ids = text.encode("utf-8", "replace"), list[int]()
        while data:
            lengths = range(min(len(data), self._longest), 0, -1)
            length = next((one for one in lengths if data[:one] in self._ids), 0)
            if not length:
                raise GarbledError(
                    f"No token of the model spells {data[:8]!r}, which the engine sent.",
                    "It must run the same model as the front.",
                )
            ids.append(self._ids[data[:length]])
            data = data[length:]
        return tuple(ids)

    def spell_in(self, text: str, num_tokens: int) -> tuple[int, ...] | None:
        """Return so many tokens that spell a short `text`; None if there are none."""
        whole = text.encode("utf-8", "replace")

        @cache
        def spelled(begin: int, left: int) -> tuple[int, ...] | None:
            if not left or begin == len(whole):
                return () if not left and begin == len(whole) else None
            for end in range(min(len(whole), begin + self._longest), begin, -1):
                token_id = self._ids.get(whole[begin:end])
                rest = None if token_id is None else spelled(end, left - 1)
                if token_id is not None and rest is not None:
                    return (token_id, *rest)
            return None

        return spelled(0, num_tokens)

    def spell_cut(self, num_tokens: int) -> tuple[int, ...] | None:
        """Return so many tokens that begin a character and do not end it, if that can be."""
        letters = [bytes([one]) for one in _UNFINISHED[:num_tokens]]
        ids = tuple(self._ids[one] for one in letters if one in self._ids)
        return ids if len(ids) == num_tokens else None

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        own = self._tokenizer
        ids = reversed(range(own.vocab_size))  # of equal spellings the first counts
        return {own.token_bytes(one): one for one in ids if not own.is_special(one)}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._ids))
