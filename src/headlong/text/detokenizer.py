"""Detokenizer: token ids in one by one, text out as soon as it is certain.

In:  token ids as they are generated.
Out: pieces of text that, joined, equal `Tokenizer.decode` of all ids.
A character whose bytes are spread over several tokens is held back until it is whole. The work per
token does not grow with the text. Knows nothing of stop strings.
"""

import codecs

from headlong.text.tokenizer import Tokenizer


class Detokenizer:
    """The decoding state of one stream of tokens."""

    def __init__(
        self, tokenizer: Tokenizer, *, skip_special: bool = True, is_continuation: bool = False
    ) -> None:
        """Begin a stream; `skip_special` leaves control tokens out of the text.

        `is_continuation`: the ids go on from a text that is already there, so a space before the
        first word is a real one and stays.
        """
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._drops_space = tokenizer.strips_first_space and not is_continuation
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Take one token and return the text that is now certain, often ""."""
        if self._skip_special and self._tokenizer.is_special(token_id):
            return ""
        data = self._tokenizer.token_bytes(token_id)
        if self._drops_space and data:
            data = data.removeprefix(b" ")
            self._drops_space = False
        return self._decoder.decode(data)

    def flush(self) -> str:
        """End the stream and return what was held back; unfinished characters become U+FFFD."""
        return self._decoder.decode(b"", final=True)
