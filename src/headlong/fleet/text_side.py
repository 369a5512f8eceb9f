"""Text: prompts and answers of engines that know no token ids here.

In:  a request's token ids; pieces of an answer's text. Out: the prompt as text; tokens that spell
the answer. The engine cuts the prompt anew, and counts its tokens by its own choice of them.
"""

from headlong.decode.request import Request
from headlong.fleet.spelling import Speller
from headlong.text.tokenizer import Tokenizer


class TextSide:
    """Goes between token ids and the text of one model."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._speller = Speller(tokenizer)
        self._beginning = tuple(tokenizer.encode(""))

    def prompt(self, request: Request) -> str:
        """Return the prompt as text, control tokens as they are written.

        What the engine's tokenizer puts before every text by itself is left out.
        """
        ids, own = request.prompt_ids, self._beginning
        ids = ids[len(own) :] if own and ids[: len(own)] == own else ids
        return self._tokenizer.decode(ids, skip_special=False)

    def tokens(self, text: str | None) -> tuple[int, ...]:
        """Return tokens that spell a piece of the answer."""
        return self._speller.spell(text) if text else ()
