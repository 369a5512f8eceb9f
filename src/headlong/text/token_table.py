"""The token table: a model's vocabulary in the form llguidance reads.

In:  a `Tokenizer`, byte-level or sentencepiece.
Out: an `LLTokenizer`. Building it takes some tenths of a second for a large vocabulary, so it is
done once per model. Knows no grammars.
"""

import re
import weakref
from typing import TYPE_CHECKING

from headlong.errors import RequestError
from headlong.text.tokenizer import Tokenizer
from headlong.text.vocabulary import TEXT_TAGS

if TYPE_CHECKING:  # see grammar.py
    from llguidance import LLTokenizer

_MARK = "\x02"
"""Put before a text, so that a tokenizer that adds a leading space adds it there."""


def make_token_table(tokenizer: Tokenizer) -> "LLTokenizer":
    """Build llguidance's view of a tokenizer."""
    from llguidance import LLTokenizer, TokenizerWrapper

    if not tokenizer.eos_ids:
        problem = "The model names no end-of-text token, so a structured answer could never end."
        raise RequestError(problem, "Name one in generation_config.json, or ask for free text.")
    return LLTokenizer(TokenizerWrapper(_View(tokenizer)), eos_token=sorted(tokenizer.eos_ids))


class _View:
    """What llguidance asks of a tokenizer, by its names; does not keep the tokenizer alive."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        ids = range(tokenizer.vocab_size)
        self.eos_token_id = min(tokenizer.eos_ids)
        self.bos_token_id = tokenizer.bos_id
        self.tokens = [tokenizer.token_bytes(token_id) for token_id in ids]
        self.special_token_ids = [token_id for token_id in ids if tokenizer.is_special(token_id)]
        self._tokenizer = weakref.ref(tokenizer)
        self._tags = {
            tag: self.tokens.index(tag.encode()) for tag in TEXT_TAGS if tag.encode() in self.tokens
        }
        self._tag_pattern = re.compile("|".join(map(re.escape, self._tags)) or r"(?!)")

    def __call__(self, text: str | bytes) -> list[int]:
        """Return the ids that spell `text` byte for byte, as the model's own tokenizer cuts it."""
        if isinstance(text, bytes):
            raise TypeError("text, not bytes")  # the answer to llguidance's question which it is
        ids: list[int] = []
        start = 0
        for tag in self._tag_pattern.finditer(text):
            ids += [*self._spell(text[start : tag.start()]), self._tags[tag.group()]]
            start = tag.end()
        return ids + self._spell(text[start:])

    def _spell(self, text: str) -> list[int]:
        tokenizer = self._tokenizer()
        if tokenizer is None:
            return self._spell_greedily(text.encode())
        for mark in ("", _MARK):
            ids = tokenizer.encode(mark + text, add_special=False, parse_special=False)
            pieces = [self.tokens[token_id] for token_id in ids]
            first = pieces.index(mark.encode()) + 1 if mark and mark.encode() in pieces else 0
            if b"".join(pieces[first:]) == text.encode():
                return ids[first:]
        return self._spell_greedily(text.encode())

    def _spell_greedily(self, data: bytes) -> list[int]:
        """Spell with the longest token each time, where the tokenizer would change the text."""
        special_ids = frozenset(self.special_token_ids)
        known = {
            piece: token_id
            for token_id, piece in enumerate(self.tokens)
            if piece and token_id not in special_ids
        }
        longest = max(map(len, known))
        ids: list[int] = []
        while data:
            sizes = range(min(longest, len(data)), 0, -1)
            size = next((size for size in sizes if data[:size] in known), None)
            if size is None:
                return ids  # a byte the model cannot write at all: what comes before it is right
            ids.append(known[data[:size]])
            data = data[size:]
        return ids
