"""Prompt files: what to ask, and how a model's chat template frames it.

In:  JSONL (plain or gzip) whose lines have `prompt` or `turns`, maybe `tools`, `set`, `task`,
     `kind`, `licence`; a tokenizer.
Out: `Prompt` records, and `ChatFrame`: the texts a chat template puts around turns.
Knows nothing of sampling or training.
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
    """One question, of one or more user turns."""

    turns: tuple[str, ...]
    set_name: str
    task: str
    licence: str = "unknown"


@dataclass(frozen=True, slots=True)
class ChatFrame:
    """What stands around turns, as the model's template writes it."""

    before_user: str
    """From the very beginning to the first user turn; holds the default system message."""
    before_answer: str
    """Between a user turn and the answer to it; begins with the end of the user's turn."""
    before_next_user: str
    """Between an answer and the next user turn; begins with the end of the answer."""

    def frame(self, question: str) -> str:
        """Return the text that asks one question."""
        return f"{self.before_user}{question}{self.before_answer}"


def read_prompts(path: Path) -> list[Prompt]:
    """Read a prompt file; a line that has no question is refused."""
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        problem = f"The prompt file {path} cannot be read: {error}."
        raise RequestError(problem, "Give JSONL in UTF-8, plain or gzipped.") from error
    # Only line feeds end a line: prompts may hold Unicode's own line separators.
    lines = [line for line in text.split("\n") if line.strip()]
    return [_read_line(line, f"{path}:{number}") for number, line in enumerate(lines, 1)]


def read_frame(tokenizer: Tokenizer) -> ChatFrame:
    """Find out what the model's chat template writes around turns."""
    messages = [
        {"role": "user", "content": _FIRST},
        {"role": "assistant", "content": _SECOND},
        {"role": "user", "content": _THIRD},
    ]
    asked = tokenizer.apply_chat_template(messages[:1])
    went_on = tokenizer.apply_chat_template(messages)
    before_user, found, before_answer = asked.partition(_FIRST)
    between = went_on.partition(_SECOND)[2].partition(_THIRD)
    if not found or not between[1]:
        raise TextError(
            "The model's chat template changes what users write, so turns cannot be framed.",
            "Train with a model whose template writes messages as they are.",
        )
    return ChatFrame(before_user, before_answer, between[0])


def _read_line(line: str, where: str) -> Prompt:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise RequestError(f"{where} is not JSON: {error}.", "One object a line.") from error
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
    # Small models' templates have no place for tools; their users write them into the prompt.
    return [f"You can call these functions:\n{listed}\n\nRequest: {record.get('prompt')}"]
