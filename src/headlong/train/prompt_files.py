"""Prompt files, and the text that a chat template puts around turns.

In:  JSONL (plain or gzip) whose lines have `prompt` or `turns`, maybe `tools`, `set`, `task`,
     `kind`, `licence`; a tokenizer.
Out: `Prompt` records, and the `ChatFrame` of a chat template.
"""

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headlong.errors import RequestError, TextError
from headlong.text.tokenizer import Tokenizer

_FIRST, _SECOND, _THIRD = "⁂user⁂", "⁂assistant⁂", "⁂again⁂"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt of one or more user turns."""

    turns: tuple[str, ...]
    set_name: str
    task: str
    licence: str = "unknown"


@dataclass(frozen=True, slots=True)
class ChatFrame:
    """The texts that a chat template puts around turns."""

    before_user: str
    """Before the first user turn; contains the default system message."""
    before_answer: str
    """Between a user turn and the answer to it; begins with the end of the user's turn."""
    before_next_user: str
    """Between an answer and the next user turn; begins with the end of the answer."""

    def frame(self, question: str) -> str:
        """Return the chat text of one question, up to the answer."""
        return f"{self.before_user}{question}{self.before_answer}"


def read_prompts(path: Path) -> list[Prompt]:
    """Read a prompt file; a line without a prompt is refused."""
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        problem = f"The prompt file {path} cannot be read: {error}."
        raise RequestError(problem, "Give JSONL in UTF-8, plain or gzipped.") from error
    # Only line feeds end a line: prompts may contain Unicode's line separators.
    lines = [line for line in text.split("\n") if line.strip()]
    return [_read_line(line, f"{path}:{number}") for number, line in enumerate(lines, 1)]


def read_frame(tokenizer: Tokenizer) -> ChatFrame:
    """Render a test chat to find the texts around its turns."""
    messages = [
        {"role": "user", "content": _FIRST},
        {"role": "assistant", "content": _SECOND},
        {"role": "user", "content": _THIRD},
    ]
    first_turn = tokenizer.apply_chat_template(messages[:1])
    whole_chat = tokenizer.apply_chat_template(messages)
    before_user, found, before_answer = first_turn.partition(_FIRST)
    between = whole_chat.partition(_SECOND)[2].partition(_THIRD)
    if not found or not between[1]:
        raise TextError(
            "The model's chat template changes the text of messages, which training cannot handle.",
            "Train with a model whose template leaves messages unchanged.",
        )
    return ChatFrame(before_user, before_answer, between[0])


def _read_line(line: str, where: str) -> Prompt:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        problem = f"{where} is not JSON: {error}."
        raise RequestError(problem, "Write one object per line.") from error
    turns = _turns(record) if isinstance(record, dict) else None
    if not turns or not all(isinstance(turn, str) and turn for turn in turns):
        problem = f"{where} has neither a 'prompt' nor 'turns' of text."
        raise RequestError(problem, 'Write {"prompt": "…"} on every line.')
    kind = str(record.get("task", record.get("kind", "prompt")))
    licence = str(record.get("licence", "unknown"))
    return Prompt(tuple(turns), str(record.get("set", kind)), kind, licence)


def _turns(record: Mapping[str, Any]) -> list[Any]:
    if "turns" in record:
        return list(record["turns"])
    tools = record.get("tools")
    if not tools:
        return [record.get("prompt")]
    listed = tools if isinstance(tools, str) else json.dumps(tools)
    # Small models' templates do not support tools; their users write them into the prompt.
    return [f"You can call these functions:\n{listed}\n\nRequest: {record.get('prompt')}"]
