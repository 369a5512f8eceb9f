"""The vocabulary of one model, the same record whatever file it came from.

In:  what `gguf_vocabulary` or `folder_vocabulary` read.
Out: `Vocabulary`, on which `tokenizer` works.
Knows how pieces spell bytes and which tokens end a turn; knows no files and no templates' language.
"""

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, TypeAlias

import tokenizers

from headlong.text.reasoning import REASONING_PIECES

Spelling: TypeAlias = Literal["byte-level", "sentencepiece"]
"""How a piece writes its bytes: one letter per byte (GPT-2), or text with ▁ and <0xNN>."""

SENTENCEPIECE_SPACE = "▁"

TOOL_TAGS = ("<tool_call>", "</tool_call>")
"""What many models put around a tool call. Some have a token for each, some of these call it a
special one; it is part of the answer all the same, since the reader of the call has to see it."""

TEXT_TAGS = (*TOOL_TAGS, *REASONING_PIECES)
"""All tokens that are part of the answer even where the vocabulary calls them special."""

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")

_END_OF_TURN = frozenset({
    "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>",
    "<|return|>", "<|call|>", "<end_of_turn>", "<end_of_utterance>", "<eos>", "</s>",
    "<｜end▁of▁sentence｜>", "<turn|>",
})  # fmt: skip


class Pieces:
    """What every token id is spelled as, in one run of bytes: strings would take six times that."""

    __slots__ = ("_ends", "_text")

    def __init__(self, pieces: Iterable[str]) -> None:
        encoded = [piece.encode() for piece in pieces]
        self._text = b"".join(encoded)
        self._ends = array("Q", accumulate(map(len, encoded), initial=0))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __iter__(self) -> Iterator[str]:
        return (self[token_id] for token_id in range(len(self)))

    def __getitem__(self, token_id: int) -> str:
        if not 0 <= token_id < len(self):
            raise IndexError(token_id)
        return self._text[self._ends[token_id] : self._ends[token_id + 1]].decode()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Pieces):
            return NotImplemented
        return self._text == other._text and self._ends == other._ends

    __hash__ = None  # type: ignore[assignment]  # as for a list


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Everything a tokenizer needs to know about one model's tokens."""

    splitter: tokenizers.Tokenizer
    """Turns text into ids; control tokens written in the text become those tokens."""
    plain_splitter: tokenizers.Tokenizer
    """The same, except that control tokens written in the text stay ordinary text."""
    pieces: Pieces
    """By token id, as stored; "" for an id that has no text."""
    spelling: Spelling
    literal_ids: frozenset[int]
    """Tokens whose piece is their literal text, even in a byte-level vocabulary."""
    special_ids: frozenset[int]
    """Tokens that steer the model and are not part of its text."""
    prefix_ids: tuple[int, ...]
    """What every prompt begins with, usually nothing or the BOS token."""
    suffix_ids: tuple[int, ...]
    """What every prompt ends with, almost always nothing."""
    eos_ids: frozenset[int]
    """Tokens that end a turn."""
    bos_id: int | None
    strips_first_space: bool
    """Text begins with a space that belongs to the encoding, not to the text."""
    templates: Mapping[str, str]
    """Chat templates by name; the usual one is called "default"."""
    named_tokens: Mapping[str, str]
    """What templates may print: bos_token, eos_token, …"""

    @property
    def control_tokens(self) -> dict[int, str]:
        """What only `splitter` reads as tokens of their own, by id."""
        added = self.splitter.get_added_tokens_decoder()
        return {token_id: token.content for token_id, token in added.items() if token.special}


def make_plain_splitter(splitter: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Return a splitter over the same model that does not see control tokens in text."""
    plain = tokenizers.Tokenizer(splitter.model)
    if splitter.normalizer is not None:
        plain.normalizer = splitter.normalizer
    if splitter.pre_tokenizer is not None:
        plain.pre_tokenizer = splitter.pre_tokenizer
    added = splitter.get_added_tokens_decoder().values()
    plain.add_tokens([token for token in added if not token.special])
    return plain


def spelled_bytes(piece: str, spelling: Spelling) -> bytes:
    """Return the bytes that `piece` encodes."""
    if spelling == "byte-level":
        spelled = [_BYTE_OF_LETTER.get(letter) for letter in piece]
        # A letter outside the alphabet means that the piece was never spelled, only written.
        return piece.encode() if None in spelled else bytes(b for b in spelled if b is not None)
    byte = _BYTE_PIECE.fullmatch(piece)
    if byte:
        return bytes([int(byte[1], 16)])
    return piece.replace(SENTENCEPIECE_SPACE, " ").encode()


def find_eos_ids(pieces: Sequence[str], special_ids: Iterable[int]) -> frozenset[int]:
    """Return the special tokens that are known by name to end a turn."""
    # Only special ones count: in some vocabularies "</s>" is HTML for struck-out text.
    named = {pieces[i]: i for i in special_ids if pieces[i] in _END_OF_TURN}
    # Where a turn ends in <|return|>, <|end|> only closes one message inside it.
    if "<|return|>" in named:
        named.pop("<|end|>", None)
    return frozenset(named.values())


def _letters_of_bytes() -> dict[str, int]:
    """Return GPT-2's alphabet: printable Latin-1 stands for itself, the rest is moved above 255."""
    itself = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = [byte for byte in range(256) if byte not in itself]
    letters = {chr(byte): byte for byte in itself}
    return letters | {chr(256 + i): byte for i, byte in enumerate(moved)}


_BYTE_OF_LETTER = _letters_of_bytes()
