"""OpenAI's responses: items of reasoning, words and calls, whole or as events.

In:  a chat choice, whole or in pieces. Out: a response object, or numbered events that build it up.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from headlong.server.answer_format import AnswerFormat, Ending, to_json
from headlong.server.telemetry import Usage

Keep: TypeAlias = Callable[[Mapping[str, Any], Mapping[str, Any]], None]
"""Takes a finished response and the message it gave."""

_STEMS = {"reasoning": "rs", "message": "msg", "function_call": "fc"}
_PARTS = {"reasoning": "reasoning_text", "message": "output_text"}


class ResponsesFormat(AnswerFormat):
    """Writes one response."""

    def __init__(self, head: Mapping[str, Any], keep: Keep) -> None:
        """Begin a response; `head` is what is known of it, `keep` gets it when it is finished."""
        self._head = head
        self._keep = keep
        self._stem = str(head["id"]).removeprefix("resp_")
        self._num_events = 0
        self._items: list[dict[str, Any]] = []
        self._open: tuple[str, int] | None = None
        """The kind of the item that is being written, and the number of its call."""
        self._text = ""

    def whole(self, choices: Sequence[Mapping[str, Any]], ending: Ending) -> Mapping[str, Any]:
        """Return the whole response."""
        message = choices[0]["message"]
        if thought := message.get("reasoning_content"):
            self._items.append(self._item("reasoning", thought))
        calls = message.get("tool_calls", ())
        if message["content"] or not (thought or calls):
            self._items.append(self._item("message", message["content"] or ""))
        for call in calls:
            self._items.append(self._item("function_call", call["function"]["arguments"], call))
        return self._finished(choices[0]["finish_reason"], ending)

    def opening(self, choices: Sequence[Mapping[str, Any]]) -> bytes:
        """Return the response without output."""
        begun = {**self._head, "status": "in_progress", "output": [], "usage": None}
        events = self._event("response.created", response=begun)
        return events + self._event("response.in_progress", response=begun)

    def pieces(self, pieces: Sequence[Mapping[str, Any]]) -> bytes:
        """Return the events of deltas."""
        return b"".join(self._delta(piece["delta"]) for piece in pieces)

    def last(self, pieces: Sequence[Mapping[str, Any]], ending: Ending) -> bytes:
        """Return the end of the last item and the whole response."""
        events = self.pieces(pieces) + self._close()
        response = self._finished(pieces[-1]["finish_reason"], ending)
        return events + self._event(f"response.{response['status']}", response=response)

    def _finished(self, finish_reason: str, ending: Ending) -> dict[str, Any]:
        is_cut = finish_reason == "length"
        response = {
            **self._head,
            "status": "incomplete" if is_cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": self._items,
            "usage": _usage(ending.usage),
            **ending.telemetry,
        }
        self._keep(response, _message(self._items))
        return response

    def _delta(self, delta: Mapping[str, Any]) -> bytes:
        events = b""
        if thought := delta.get("reasoning_content"):
            events += self._write("reasoning", thought)
        if text := delta.get("content"):
            events += self._write("message", text)
        for call in delta.get("tool_calls", ()):
            events += self._write("function_call", call["function"]["arguments"], call)
        return events

    def _write(self, kind: str, text: str, call: Mapping[str, Any] | None = None) -> bytes:
        """Return a delta in its item, which is begun where another kind was written before."""
        wanted = (kind, 0 if call is None else int(call["index"]))
        events = b"" if self._open == wanted else self._begin(wanted, call)
        self._text += text
        if not text:
            return events
        name = "function_call_arguments" if kind == "function_call" else _PARTS[kind]
        more: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
        return events + self._part_event(f"response.{name}.delta", delta=text, **more)

    def _begin(self, wanted: tuple[str, int], call: Mapping[str, Any] | None) -> bytes:
        events = self._close()
        self._open, self._text = wanted, ""
        item = {**self._item(wanted[0], "", call), "status": "in_progress"}
        begun = item if call is not None else {**item, "content": []}
        self._items.append(item)
        place = len(self._items) - 1
        events += self._event("response.output_item.added", output_index=place, item=begun)
        if call is None:
            part = item["content"][0]
            events += self._part_event("response.content_part.added", part=part)
        return events

    def _close(self) -> bytes:
        """Return the end of the item that is being written."""
        if self._open is None:
            return b""
        (kind, _), self._open = self._open, None
        item = self._items[-1]
        item["status"] = "completed"
        if kind == "function_call":
            item["arguments"] = self._text
            given = {"arguments": self._text, "name": item["name"]}
            events = self._part_event("response.function_call_arguments.done", **given)
        else:
            part = item["content"][0]
            part["text"] = self._text
            more: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
            name = f"response.{_PARTS[kind]}.done"
            events = self._part_event(name, text=self._text, **more)
            events += self._part_event("response.content_part.done", part=part)
        place = len(self._items) - 1
        return events + self._event("response.output_item.done", output_index=place, item=item)

    def _item(self, kind: str, text: str, call: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return a finished item."""
        item = {"id": f"{_STEMS[kind]}_{self._stem}_{len(self._items)}", "type": kind}
        item["status"] = "completed"
        if call is not None:
            name = call["function"]["name"]
            return {**item, "call_id": call["id"], "name": name, "arguments": text}
        part: dict[str, Any] = {"type": _PARTS[kind], "text": text}
        if kind == "reasoning":
            return {**item, "summary": [], "content": [part]}
        return {**item, "role": "assistant", "content": [{**part, "annotations": []}]}

    def _part_event(self, kind: str, **fields: Any) -> bytes:
        """Return an event about the text of the newest item."""
        place = {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1}
        if "function_call" not in kind:
            place["content_index"] = 0
        return self._event(kind, **place, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._num_events = self._num_events, self._num_events + 1
        data = to_json({"type": kind, "sequence_number": number, **fields})
        return f"event: {kind}\ndata: ".encode() + data + b"\n\n"


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": usage.prompt_tokens_details.model_dump(),
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": usage.completion_tokens_details.model_dump(),
        "total_tokens": usage.total_tokens,
    }


def _message(items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the chat message that items amount to."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for item in items:
        if item["type"] == "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            call = {"id": item["call_id"], "type": "function", "function": function}
            message.setdefault("tool_calls", []).append(call)
        else:
            field = "content" if item["type"] == "message" else "reasoning_content"
            message[field] = item["content"][0]["text"]
    return message
