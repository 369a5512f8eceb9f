"""Fill in the middle: a prompt from the texts before and after a gap.

In:  the tokens of a vocabulary; a text's two sides, and other files it should fit.
Out: token ids after which the model writes what belongs between, for models trained to do that.
The order is that of Qwen, StarCoder, Granite and DeepSeek: before, after, then the middle. With
tokens for a repository and its files these stand first, as in the paper on Qwen2.5-Coder.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

_SPELLINGS = {
    "before": ("<|fim_prefix|>", "<fim_prefix>", "<fim-prefix>", "<｜fim▁begin｜>"),
    "after": ("<|fim_suffix|>", "<fim_suffix>", "<fim-suffix>", "<｜fim▁hole｜>"),
    "middle": ("<|fim_middle|>", "<fim_middle>", "<fim-middle>", "<｜fim▁end｜>"),
    "repository": ("<|repo_name|>", "<reponame>", "<repo_name>"),
    "file": ("<|file_sep|>", "<filename>", "<file_sep>"),
    "padding": ("<|fim_pad|>", "<fim_pad>", "<fim-pad>"),
}


@dataclass(frozen=True, slots=True)
class InfillTokens:
    """The tokens of one model for it."""

    before: int
    after: int
    middle: int
    repository: int | None = None
    file: int | None = None
    padding: int | None = None

    @property
    def end_ids(self) -> frozenset[int]:
        """What ends the middle besides the model's own end: the next file begins."""
        ids = (self.repository, self.file, self.padding)
        return frozenset(token_id for token_id in ids if token_id is not None)


def find_infill_tokens(ids: Mapping[str, int]) -> InfillTokens | None:
    """Return a vocabulary's tokens for it, by what they are spelled as; None if it has none."""
    found = {
        part: next((ids[one] for one in spellings if one in ids), None)
        for part, spellings in _SPELLINGS.items()
    }
    before, after, middle = (found.pop(part) for part in ("before", "after", "middle"))
    if before is None or after is None or middle is None:
        return None
    return InfillTokens(before, after, middle, **found)


@dataclass(frozen=True, slots=True)
class OtherFile:
    """A file the model should know of."""

    text: str
    name: str = "tmp"


def infill_ids(
    tokens: InfillTokens,
    sides: tuple[str, str],
    others: Sequence[OtherFile],
    encode: Callable[[str], list[int]],
) -> list[int]:
    """Return the prompt; `encode` takes text as text, control tokens in it included."""
    shown: list[int] = []
    for other in others:
        if tokens.file is None:
            shown += encode(f"{other.text}\n\n")
        else:
            shown += [tokens.file, *encode(f"{other.name}\n{other.text}")]
    if shown and tokens.file is not None:
        own = [tokens.file, *encode("filename\n")]
        named = [] if tokens.repository is None else [tokens.repository, *encode("myproject\n")]
        shown = [*named, *shown, *own]
    before, after = map(encode, sides)
    return [*shown, tokens.before, *before, tokens.after, *after, tokens.middle]
