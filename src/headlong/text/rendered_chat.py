"""Rendered chats: the output of a chat template, with control tokens in content marked.

In:  messages and tools for a chat template.
Out: the same with the first character of every control token in them replaced by a mark, and
     `RenderedChat`.
Content is text: `<|im_end|>` in a message or a tool's result must not end a turn; only the template
may. A mark is one private-use character, so templates can still cut and trim.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headlong.errors import TextError
from headlong.text.reasoning import Reasoning

_MARKS = range(0xF0000, 0x10FFFE)
"""Private-use characters; those that the content contains are not used."""


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """The text of a conversation."""

    marked: str
    """The text, without control tokens in content."""
    marks: Mapping[str, str]
    """The character that each mark replaces; usually empty."""
    reasoning: Reasoning | None = None
    """How an answer to it reasons; None where the model never does."""
    warnings: tuple[str, ...] = ()
    """Options without effect, in whole sentences."""

    @property
    def text(self) -> str:
        """The text without marks."""
        return self.unmarked(self.marked)

    def unmarked(self, part: str) -> str:
        """Return a part of the text without marks."""
        return part.translate({ord(mark): first for mark, first in self.marks.items()})


class ControlMarker:
    """Marks the control tokens of one vocabulary in content."""

    def __init__(self, control_tokens: Iterable[str]) -> None:
        rests: dict[str, list[str]] = defaultdict(list)
        for token in filter(None, control_tokens):
            rests[token[0]].append(re.escape(token[1:]))
        found = [f"{re.escape(first)}(?={'|'.join(rest)})" for first, rest in rests.items()]
        # Matches first characters only, so that tokens which overlap are all found.
        self._pattern = re.compile("|".join(found) or "(?!)")

    def mark(self, content: Any) -> tuple[Any, dict[str, str]]:
        """Return nested content with its control tokens marked, and the characters replaced."""
        try:
            texts = list(_texts(content))
            firsts = {first for text in texts for first in self._pattern.findall(text)}
            if not firsts:
                return content, {}
            used = set().union(*texts)
            free = (chr(code) for code in _MARKS if chr(code) not in used)
            marks = dict(zip(sorted(firsts), free, strict=False))
            # If content contains all private-use characters, control tokens lose their first one.
            return self._replace(content, marks), {mark: first for first, mark in marks.items()}
        except RecursionError as error:
            problem = "The messages or tools are nested too deep."
            raise TextError(problem, "Nest them less than 60 deep.") from error

    def _replace(self, content: Any, marks: Mapping[str, str]) -> Any:
        if isinstance(content, str):
            return self._pattern.sub(lambda found: marks.get(found[0], ""), content)
        if isinstance(content, Mapping):
            items = content.items()
            return {self._replace(k, marks): self._replace(v, marks) for k, v in items}
        if isinstance(content, Collection):
            return [self._replace(one, marks) for one in content]
        return content


def _texts(content: Any) -> Iterator[str]:
    """Walk through nested content and yield its texts, names of fields included."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, Mapping):
        for name, value in content.items():
            yield from _texts(name)
            yield from _texts(value)
    elif isinstance(content, Collection):
        for one in content:
            yield from _texts(one)
