"""Written chats: what a template wrote, with control tokens in content told from its own.

In:  messages and tools on their way into a chat template.
Out: the same with the first character of every control token in them marked, and `WrittenChat`.
Content is text. A user or a tool's result that says `<|im_end|>` must not end a turn; only the
template may. A mark is one private character, so that templates can still cut and trim.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headlong.errors import TextError
from headlong.text.reasoning import Reasoning

_MARKS = range(0xF0000, 0x10FFFE)
"""Private characters; one that the content itself holds is not used."""


@dataclass(frozen=True, slots=True)
class WrittenChat:
    """The text of a conversation."""

    marked: str
    """The text, in which content holds no control token."""
    marks: Mapping[str, str]
    """What each mark in it stands for; empty for ordinary content."""
    reasoning: Reasoning | None = None
    """How an answer to it reasons; None where the model never does."""
    warnings: tuple[str, ...] = ()
    """What of the options has no effect, in whole sentences."""

    @property
    def text(self) -> str:
        """The text as people read it."""
        return self.unmarked(self.marked)

    def unmarked(self, part: str) -> str:
        """Return a part of the text as people read it."""
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
        """Return nested content with its control tokens marked, and what each mark stands for."""
        try:
            texts = list(_texts(content))
            firsts = {first for text in texts for first in self._pattern.findall(text)}
            if not firsts:
                return content, {}
            used = set().union(*texts)
            free = (chr(code) for code in _MARKS if chr(code) not in used)
            marks = dict(zip(sorted(firsts), free, strict=False))
            # Who writes all private characters loses the first one of a control token.
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
