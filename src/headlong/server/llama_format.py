"""llama.cpp's completions: one object, or events without an end mark of their own.

In:  a choice of a plain completion, whole or in pieces. Out: llama.cpp's objects, our `mtp` in the
     last one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from headlong.server.answer_format import AnswerFormat, Ending, to_json
from headlong.server.call import Call
from headlong.server.preparation import PreparedAnswer


class LlamaFormat(AnswerFormat):
    """Writes one completion."""

    def __init__(self, call: Call, prepared: PreparedAnswer) -> None:
        """Begin an answer."""
        self._model_id = call.service.model_id
        request = prepared.choices[0].request
        tokenizer = call.service.model.tokenizer
        self._prompt = tokenizer.decode(request.prompt_ids, skip_special=False)

    def whole(self, choices: Sequence[Mapping[str, Any]], ending: Ending) -> Mapping[str, Any]:
        """Return the whole object."""
        choice = choices[0]
        tokens = choice.get("token_ids", [])
        return {"content": choice["text"], "tokens": tokens, **self._end(choice, ending)}

    def pieces(self, pieces: Sequence[Mapping[str, Any]]) -> bytes:
        """Return an event for each piece with text or tokens."""
        said = [one for one in pieces if one["text"] or one.get("token_ids")]
        return b"".join(
            _event({"content": one["text"], "tokens": one.get("token_ids", []), "stop": False})
            for one in said
        )

    def last(self, pieces: Sequence[Mapping[str, Any]], ending: Ending) -> bytes:
        """Return the last pieces and the event that ends the stream."""
        end = {"content": "", "tokens": [], **self._end(pieces[-1], ending)}
        return self.pieces(pieces) + _event(end)

    def _end(self, choice: Mapping[str, Any], ending: Ending) -> dict[str, Any]:
        usage, word = ending.usage, choice.get("stop_reason") or ""
        stop_type = "limit" if choice["finish_reason"] == "length" else "word" if word else "eos"
        return {
            "index": 0,
            "id_slot": -1,
            "stop": True,
            "model": self._model_id,
            "prompt": self._prompt,
            "stop_type": stop_type,
            "stopping_word": word,
            "tokens_predicted": usage.completion_tokens,
            "tokens_evaluated": usage.prompt_tokens,
            "tokens_cached": usage.prompt_tokens_details.cached_tokens,
            "truncated": False,
            **ending.telemetry,
        }


def _event(fields: Mapping[str, Any]) -> bytes:
    return b"data: " + to_json(fields) + b"\n\n"
