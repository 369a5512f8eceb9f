"""Tool calls: find them in an answer that arrives in pieces, cut anywhere.

In:  pieces of text. Out: text for people, and calls as they begin and as their arguments grow.
Reads `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, and an answer that is nothing but such
JSON, an object or a list of them. Half a tag is never shown as text, nor is a call that the answer
breaks off in; white space around calls is dropped, and what turns out to be no call stays text as
it was written. Knows tools by name only.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from headlong.text.stop import beginning_of
from headlong.text.tools import HERMES, ToolStyle

_HEAD = re.compile(
    r'\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
_BARE_HEADS = ('{"name":"', '[{"name":"')
_SURELY_TAG = "<tool"
"""At this length a partial tag is taken for a tag, not for text that ends with a bracket."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call begins; its arguments follow."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """More of a call's arguments, a piece of JSON text."""

    index: int
    text: str


ToolEvent: TypeAlias = TextDelta | ToolCallStart | ToolCallArguments

_Step: TypeAlias = tuple[list[ToolEvent], bool]
"""What one step of reading gave, and whether another one may give more."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as a whole."""

    id: str
    name: str
    arguments: str
    """A JSON object as text; cut short where the answer was."""


@dataclass(frozen=True, slots=True)
class AnswerParts:
    """An answer taken apart."""

    text: str
    tool_calls: tuple[ToolCall, ...]


def read_answer(
    text: str,
    id_stem: str,
    enforced: ToolStyle | None = None,
    names: Collection[str] | None = None,
    *,
    is_cut: bool = False,
) -> AnswerParts:
    """Take a whole answer apart; the arguments are those of `ToolCallReader` and its `flush`."""
    reader = ToolCallReader(id_stem, enforced, names)
    texts: list[str] = []
    calls: list[ToolCall] = []
    for event in [*reader.push(text), *reader.flush(is_cut=is_cut)]:
        if isinstance(event, TextDelta):
            texts.append(event.text)
        elif isinstance(event, ToolCallStart):
            calls.append(ToolCall(event.id, event.name, ""))
        else:
            last = calls[event.index]
            calls[event.index] = ToolCall(last.id, last.name, last.arguments + event.text)
    return AnswerParts("".join(texts), tuple(calls))


class ToolCallReader:
    """The reading state of one answer."""

    def __init__(
        self, id_stem: str, enforced: ToolStyle | None = None, names: Collection[str] | None = None
    ) -> None:
        """Begin an answer.

        Args:
            id_stem: Makes the ids of calls: "call_<stem>_<index>".
            enforced: A grammar makes sure that what begins as a call of this style is one, so
                its arguments can be passed on while they are written; any other call is held until
                it is whole and has been checked.
            names: The tools there are: a call of any other is text. None takes every name.
        """
        self._names = names
        self._id_stem = id_stem
        self._enforced = enforced
        self._held = ""
        self._call: _Candidate | None = None
        self._num_calls = 0
        self._is_beginning = True

    def push(self, text: str) -> list[ToolEvent]:
        """Take more text and return what is now certain."""
        events: list[ToolEvent] = []
        self._held += text
        while True:
            found, goes_on = (
                self._find_call() if self._call is None else self._read_call(self._call)
            )
            events += found
            if not goes_on:
                return events

    def flush(self, *, is_cut: bool = False) -> list[ToolEvent]:
        """End the answer and return what was held back, unless it is a call without its end.

        `is_cut` says that the answer ended at its token limit, not by itself.
        """
        held = self._held
        if self._call is not None:
            held = "" if self._call.streamed else self._call.opening + held
        is_space = self._num_calls > 0 and not held.strip()
        is_nothing = not held or is_space or self._is_half_call(held, is_cut)
        self._held, self._call = "", None
        return [] if is_nothing else [TextDelta(held)]

    def _is_half_call(self, held: str, is_cut: bool) -> bool:
        """Tell whether a grammar would have made a call of what the answer breaks off in."""
        if self._enforced is None:
            return False
        if self._call is not None and not self._can_stream(self._call):
            return False
        if not self._enforced.opening:
            return self._begins_bare_call(held)
        # Behind a call there can be no text, only another one.
        is_tag = is_cut and held.lstrip().startswith(_SURELY_TAG)
        return self._call is not None or self._num_calls > 0 or is_tag

    def _begins_bare_call(self, held: str) -> bool:
        """Tell JSON that may become a call of a tool from JSON that is an answer."""
        bare = "".join(held.split())
        names = [""] if self._names is None else [f'{name}",' for name in self._names]
        heads = [head + name for head in _BARE_HEADS for name in names]
        return bare != "" and any(head.startswith(bare) or bare.startswith(head) for head in heads)

    def _find_call(self) -> _Step:
        """Release text up to where a call begins or may begin."""
        held = self._held
        if self._is_beginning:
            bare = "".join(held[:64].split())
            if not bare or any(head.startswith(bare) for head in _BARE_HEADS):
                return [], False
            self._is_beginning = False
            if bare.startswith(_BARE_HEADS):
                self._call = _Candidate("", "")
                return [], True
        start = held.find(HERMES.opening)
        if start >= 0:
            before = held[:start].rstrip()
            stop = start + len(HERMES.opening)
            self._call = _Candidate(held[len(before) : stop], HERMES.closing)
            self._held = held[stop:]
            return _text(before), True
        cut = len(held[: beginning_of((HERMES.opening,), held)].rstrip())
        self._held = held[cut:]
        return _text(held[:cut]), False

    def _read_call(self, call: "_Candidate") -> _Step:
        """Read on in what may be a call."""
        call.scan(self._held)
        events = list(self._stream(call)) if self._can_stream(call) else []
        rest = self._held[call.end :].lstrip() if call.end is not None else ""
        if call.is_broken or (call.end is not None and not _may_close(rest, call.closing)):
            return self._give_up(call, events)
        if call.end is None or not rest.startswith(call.closing):
            return events, False
        if not call.streamed:
            found = _calls_in(self._held[: call.end])
            if found is None or not (
                self._names is None or all(n in self._names for n, _ in found)
            ):
                return self._give_up(call, events)
            for name, arguments in found:
                events += [self._start(name), ToolCallArguments(self._num_calls - 1, arguments)]
        self._held = rest[len(call.closing) :]
        self._call = None
        return events, True

    def _can_stream(self, call: "_Candidate") -> bool:
        is_bare = not call.closing
        return self._enforced is not None and is_bare == (not self._enforced.opening)

    def _stream(self, call: "_Candidate") -> Iterator[ToolEvent]:
        """Pass on the arguments of a single call as far as they are written."""
        if call.arguments_start is None:
            return
        if not call.streamed:
            call.streamed = call.arguments_start
            yield self._start(call.name)
        stop = call.arguments_end or call.position
        if stop > call.streamed:
            yield ToolCallArguments(self._num_calls - 1, self._held[call.streamed : stop])
            call.streamed = stop

    def _start(self, name: str) -> ToolCallStart:
        index = self._num_calls
        self._num_calls += 1
        return ToolCallStart(index, f"call_{self._id_stem}_{index}", name)

    def _give_up(self, call: "_Candidate", events: list[ToolEvent]) -> _Step:
        """Return to text: the opening was no beginning of a call."""
        self._call = None
        if call.streamed:
            self._held = self._held[call.streamed :]
            return events, True
        return [*events, *_text(call.opening)], True


@dataclass(slots=True)
class _Candidate:
    """Text that may be a call: where its JSON begins and ends, found without reading twice."""

    opening: str
    """What was taken off the text before it, white space included; "" for bare JSON."""
    closing: str
    start: int = 0
    position: int = 0
    end: int | None = None
    name: str = ""
    arguments_start: int | None = None
    arguments_end: int | None = None
    streamed: int = 0
    """Start of the arguments that were not yet passed on; 0 while none were."""
    is_broken: bool = False
    _depth: int = 0
    _is_string: bool = False
    _is_escaped: bool = False

    def scan(self, text: str) -> None:
        """Read on to the end of the JSON value, or of the text."""
        while self.end is None and self.position < len(text) and not self.is_broken:
            self._take(text, text[self.position])
            self.position += 1
            if self._depth == 0 and self.position > self.start:
                self.end = self.position

    def _take(self, text: str, letter: str) -> None:
        if self._depth == 0:
            self._begin(letter)
        elif self._is_string:
            self._is_string = self._is_escaped or letter != '"'
            self._is_escaped = letter == "\\" and not self._is_escaped
        elif letter == '"':
            self._is_string = True
        elif letter in "{[":
            self._depth += 1
            self._find_arguments(text)
        elif letter in "}]":
            self._depth -= 1
            if self._depth == 1 and self.arguments_start is not None:
                self.arguments_end = self.arguments_end or self.position + 1

    def _begin(self, letter: str) -> None:
        if letter in "{[":
            self._depth = 1
        elif letter.isspace():
            self.start = self.position + 1
        else:
            self.is_broken = True

    def _find_arguments(self, text: str) -> None:
        """Notice where the arguments of a single call begin, if that is here."""
        head = _HEAD.match(text, self.start) if self._depth == 2 else None
        if head is not None and head.end() == self.position:
            self.arguments_start = self.position
            self.name = json.loads(head[1])


def _calls_in(text: str) -> list[tuple[str, str]] | None:
    """Return name and arguments of every call in a JSON text; None if it is anything else."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    calls = [_as_call(one) for one in (value if isinstance(value, list) else [value])]
    found = [call for call in calls if call is not None]
    return found if found and len(found) == len(calls) else None


def _as_call(value: object) -> tuple[str, str] | None:
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        return None
    arguments: Any = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return None
    if not isinstance(arguments, dict):
        return None
    return value["name"], json.dumps(arguments, ensure_ascii=False)


def _may_close(rest: str, closing: str) -> bool:
    return rest.startswith(closing) or closing.startswith(rest)


def _text(text: str) -> list[ToolEvent]:
    return [TextDelta(text)] if text else []
