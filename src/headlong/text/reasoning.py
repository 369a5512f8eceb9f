"""Reasoning: separate a model's reasoning from its answer.

In:  a model's templates and tokens; a prompt as written; an answer that arrives in pieces.
Out: the tags around reasoning, how an answer to this prompt begins, and both parts of the answer.
Whether a model reasons follows from its templates and tokens, never from its name. The result does
not depend on how the text is cut into pieces. White space around both parts is dropped.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from headlong.errors import TextError
from headlong.text.stop import beginning_of

_SWITCHES = ("enable_thinking", "thinking")
"""Keywords of templates that turn reasoning on and off."""


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """The tags around reasoning."""

    opening: str
    closing: str
    label: str = ""
    """What follows the opening at once, where it may open other things as well."""

    @property
    def start(self) -> str:
        """The opening with its label."""
        return self.opening + self.label

    @property
    def pieces(self) -> tuple[str, str]:
        """The tokens that a vocabulary may have for them."""
        return self.opening, self.closing


KNOWN_TAGS = (
    ReasoningTags("<think>", "</think>"),
    ReasoningTags("<|START_THINKING|>", "<|END_THINKING|>"),
    ReasoningTags("<seed:think>", "</seed:think>"),
    ReasoningTags("[THINK]", "[/THINK]"),
    ReasoningTags("<|channel>", "<channel|>", "thought\n"),
    ReasoningTags("<|inner_prefix|>", "<|inner_suffix|>"),
)

REASONING_PIECES = tuple(piece for tags in KNOWN_TAGS for piece in tags.pieces)
"""Tokens that some vocabularies call special; what they enclose could not be told without them."""


class Beginning(Enum):
    """How the answer to a prompt begins."""

    REASONING = "reasoning"
    """The template has opened it: the answer begins inside."""
    ANSWER = "answer"
    """The template has closed it, or the answer goes on from words that are there."""
    OPEN = "open"
    """The model itself decides whether to reason first."""


@dataclass(frozen=True, slots=True)
class Reasoning:
    """How one answer reasons."""

    tags: ReasoningTags
    beginning: Beginning


class SplitText(NamedTuple):
    """Certain text of an answer, by part."""

    reasoning: str
    answer: str


def find_tags(templates: Iterable[str], tokens: Collection[str]) -> ReasoningTags | None:
    """Return the tags a model reasons in, as its templates write them or its tokens spell them."""
    sources = list(templates)
    for tags in KNOWN_TAGS:
        if any(piece in source for source in sources for piece in tags.pieces):
            return tags
    return next((tags for tags in KNOWN_TAGS if set(tags.pieces) <= set(tokens)), None)


def beginning_after(prompt: str, tags: ReasoningTags) -> Beginning:
    """Return how an answer behind a template's last words begins."""
    text = prompt.rstrip()
    if text.endswith(tags.start.rstrip()):
        return Beginning.REASONING
    return Beginning.ANSWER if text.endswith(tags.closing) else Beginning.OPEN


def beginning_inside(before: str, content: str, tags: ReasoningTags) -> Beginning:
    """Return how an answer goes on from what a message already says behind a template's words."""
    opened, closed = content.rfind(tags.start), content.rfind(tags.closing)
    is_inside = opened > closed
    if opened == closed:  # neither is there
        is_inside = beginning_after(before, tags) is Beginning.REASONING
    return Beginning.REASONING if is_inside else Beginning.ANSWER


def close_reasoning(prompt: str, tags: ReasoningTags) -> str:
    """Return a prompt in which the reasoning that its template opened has ended, with no word."""
    if beginning_after(prompt, tags) is not Beginning.REASONING:
        return prompt
    return f"{prompt.rstrip()}\n\n{tags.closing}\n\n"


def template_switches(
    think: bool | None, given: Mapping[str, Any], known: Collection[str]
) -> dict[str, Any]:
    """Return the keywords for a template that reads `known` ones; `think` sets those not given."""
    if think is not None and not isinstance(think, bool):
        raise TextError(f"think is {think!r}.", "It must be True, False or None.")
    if think is None:
        return dict(given)
    return {name: think for name in _SWITCHES if name in known} | dict(given)


class ReasoningReader:
    """The reading state of one answer."""

    def __init__(self, reasoning: Reasoning) -> None:
        """Begin an answer."""
        self._tags = reasoning.tags
        self._held = ""
        self._is_open = reasoning.beginning is not Beginning.REASONING
        """Whether what is read may still turn out to be reasoning."""
        self.is_inside = not self._is_open
        """Whether reasoning has begun and not ended."""
        self._is_fresh = True
        """Whether the part that is read has no text yet."""

    def push(self, text: str) -> SplitText:
        """Take more text and return what is now certain."""
        self._held += text
        if self._is_open:
            self._begin()
        reasoning = self._read_reasoning() if self.is_inside else ""
        return SplitText(reasoning, self._read_answer())

    def flush(self) -> SplitText:
        """End the answer and return what was held back."""
        held, self._held = self._held, ""
        return SplitText(held.rstrip(), "") if self.is_inside else SplitText("", held)

    def _begin(self) -> None:
        """Find out whether the answer begins with reasoning."""
        opening, text = self._tags.start, self._held.lstrip()
        if text.startswith(opening):
            self._held, self._is_open, self.is_inside = text[len(opening) :], False, True
        elif not opening.startswith(text):
            self._is_open = self._is_fresh = False  # white space before a plain answer is its own

    def _read_reasoning(self) -> str:
        """Release text up to where reasoning ends or may end, without white space around it."""
        text = self._held.lstrip() if self._is_fresh else self._held
        closing = self._tags.closing
        end = text.find(closing)
        if end >= 0:
            self._held, self.is_inside, self._is_fresh = text[end + len(closing) :], False, True
            return text[:end].rstrip()
        certain = text[: beginning_of((closing,), text)].rstrip()
        self._held = text[len(certain) :]
        self._is_fresh = self._is_fresh and not certain
        return certain

    def _read_answer(self) -> str:
        """Release the answer, without the white space between reasoning and it."""
        if self._is_open or self.is_inside:
            return ""
        text = self._held.lstrip() if self._is_fresh else self._held
        self._held = ""
        self._is_fresh = self._is_fresh and not text
        return text
