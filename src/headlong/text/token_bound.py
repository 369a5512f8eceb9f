"""A lower bound on the number of tokens of a text, without tokenizing it.

In:  the texts of a vocabulary's tokens. Out: for a text, a number of tokens that it has at least.
Megabytes take milliseconds, while tokenizing them takes seconds.
The longest token may be a long line of dashes, the longest word is much shorter, and digits often
have a token each. So kinds of bytes are counted separately: a text needs at least as many tokens
as its letters alone.
"""

import string
from collections.abc import Sequence

import numpy as np

_KINDS = (string.ascii_letters.encode(), string.digits.encode(), string.punctuation.encode(),
          bytes(range(0x80, 0x100)))  # fmt: skip
"""White space is in none of them: some tokens swallow any amount of it."""

_REST = len(_KINDS)


class TokenBound:
    """Bounds for the texts of one vocabulary."""

    def __init__(self, spelled: Sequence[bytes]) -> None:
        """Count the bytes of each kind in every token."""
        self._longest = max(map(len, spelled))
        # A byte without a token of its own may be dropped from a text, so it is not counted.
        known = {one for one in spelled if len(one) == 1}
        self._kind_of = np.full(256, _REST, np.uint8)  # (256,)
        for kind, kind_bytes in enumerate(_KINDS):
            for byte in kind_bytes:
                if bytes([byte]) in known:
                    self._kind_of[byte] = kind
        written = [one for one in spelled if one]
        starts = np.cumsum([0, *map(len, written[:-1])])
        kinds = self._kinds(b"".join(written))
        self._most = [  # most bytes of each kind in one token
            int(np.add.reduceat(kinds == kind, starts, dtype=np.int64).max())
            for kind in range(_REST)
        ]

    def min_num_tokens(self, text: str) -> int:
        """Return how many tokens a text has at min_num_tokens."""
        kinds = self._kinds(text.encode("utf-8", "replace"))
        counts = np.bincount(kinds, minlength=_REST + 1)
        needed = [
            -(-int(count) // most)
            for count, most in zip(counts[:_REST], self._most, strict=True)
            if most
        ]
        return max(len(text) // self._longest, *needed)

    def _kinds(self, data: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        return self._kind_of[np.frombuffer(data, np.uint8)]
