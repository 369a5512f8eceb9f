"""Ollama's answers: JSON objects line by line, or one.

In:  a choice of a chat or a plain request, whole or in pieces. Out: Ollama's objects, the last one
     with durations, our `mtp` beside them. Calls are written when they are whole, as Ollama does.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from headlong.server.answer_format import AnswerFormat, Ending, to_json
from headlong.server.call import Call
from headlong.server.preparation import PreparedAnswer


class OllamaFormat(AnswerFormat):
    """Writes one answer."""

    media_type = "application/x-ndjson"

    def __init__(self, call: Call, prepared: PreparedAnswer, *, is_chat: bool) -> None:
        """Begin an answer, of /api/chat or of /api/generate."""
        self._call = call
        self._is_chat = is_chat
        self._calls: dict[int, dict[str, str]] = {}

    def whole(self, choices: Sequence[Mapping[str, Any]], ending: Ending) -> Mapping[str, Any]:
        """Return the whole answer."""
        choice = choices[0]
        message = choice.get("message") or {"content": choice.get("text")}
        for place, call in enumerate(message.get("tool_calls", ())):
            self._calls[place] = dict(call["function"])
        thought = message.get("reasoning_content") or ""
        content = self._content(message["content"] or "", thought, self._finished_calls())
        return self._object(content) | self._end(choice["finish_reason"], ending)

    def pieces(self, pieces: Sequence[Mapping[str, Any]]) -> bytes:
        """Return an object for each piece that says something."""
        return b"".join(self._line(piece) for piece in pieces)

    def last(self, pieces: Sequence[Mapping[str, Any]], ending: Ending) -> bytes:
        """Return the last pieces, calls, and the object that ends the stream."""
        lines = self.pieces(pieces)
        if calls := self._finished_calls():
            content = self._content("", "", calls)
            lines += to_json({**self._object(content), "done": False}) + b"\n"
        end = self._object(self._content("", "", []))
        return lines + to_json(end | self._end(pieces[-1]["finish_reason"], ending)) + b"\n"

    def _line(self, piece: Mapping[str, Any]) -> bytes:
        delta = piece.get("delta") or {"content": piece.get("text")}
        for call in delta.get("tool_calls", ()):
            known = self._calls.setdefault(call["index"], {"name": "", "arguments": ""})
            known["name"] += call["function"].get("name", "")
            known["arguments"] += call["function"]["arguments"]
        text, thought = delta.get("content") or "", delta.get("reasoning_content") or ""
        if not text and not thought:
            return b""
        content = self._content(text, thought, [])
        return to_json({**self._object(content), "done": False}) + b"\n"

    def _content(
        self, text: str, thought: str, calls: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Return what an object says, in the fields of its route."""
        thinking = {"thinking": thought} if thought else {}
        if not self._is_chat:
            return {"response": text, **thinking}
        message: dict[str, Any] = {"role": "assistant", "content": text, **thinking}
        return {"message": message | ({"tool_calls": list(calls)} if calls else {})}

    def _object(self, content: Mapping[str, Any]) -> dict[str, Any]:
        return {"model": self._call.service.model_id, "created_at": now(), **content}

    def _finished_calls(self) -> list[dict[str, Any]]:
        """Return the calls with their arguments as objects; one that was cut is none."""
        finished = []
        for call in self._calls.values():
            try:
                arguments = json.loads(call["arguments"])
            except ValueError:
                continue
            finished.append({"function": {"name": call["name"], "arguments": arguments}})
        return finished

    def _end(self, finish_reason: str, ending: Ending) -> dict[str, Any]:
        timings = ending.telemetry["timings"]
        prompt_ns, eval_ns = (int(1e6 * timings[f"{one}_ms"]) for one in ("prompt", "predicted"))
        return {
            "done": True,
            "done_reason": "length" if finish_reason == "length" else "stop",
            "total_duration": prompt_ns + eval_ns,
            "load_duration": 0,
            "prompt_eval_count": ending.usage.prompt_tokens,
            "prompt_eval_duration": prompt_ns,
            "eval_count": ending.usage.completion_tokens,
            "eval_duration": eval_ns,
            **ending.telemetry,
        }


def now() -> str:
    """Return the time as Ollama writes it."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")
