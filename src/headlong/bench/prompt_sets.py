"""Prompts to measure with: the user's own, or the built-in task set.

In:  files, folders, standard input, or nothing. `.jsonl` has one object a line with `prompt`,
     `messages` or `turns`, maybe `task`, `max_tokens`, `temperature`, `tools`; `.txt` has one
     prompt a line; any other text is one prompt. In a folder every text file is one prompt.
Out: a `PromptSet` whose hash says whether two measurements asked the same.
Knows nothing of models, so what is too long for one is found out later.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headlong.config import SamplingParams, StopParams
from headlong.errors import RequestError

STDIN = "-"
BUILT_IN = Path(__file__).with_name("task_set.jsonl")
"""Our own prompts, nine tasks; Apache-2.0 like the rest."""
LOAD_SET = Path(__file__).with_name("load_set.jsonl")
"""Our own mix of traffic: agents with tools, chat, stories."""

_FOLDER_SUFFIXES = (".txt", ".md", ".prompt", ".jsonl")
_REMEDY = 'Write {"prompt": "…"} or {"messages": [{"role": "user", "content": "…"}]} on every line.'


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One prompt and what its file says about it."""

    messages: tuple[Mapping[str, Any], ...]
    task: str
    name: str
    """Where it comes from, for people: `prompts.jsonl:3`."""
    text: str | None = None
    """The prompt itself where it is no conversation, for models without a chat template."""
    tools: tuple[Mapping[str, Any], ...] = ()
    max_tokens: int | None = None
    temperature: float | None = None

    @property
    def hash(self) -> str:
        """What is asked, in 16 letters; two files asking the same have the same."""
        asked = json.dumps([self.messages, self.tools], sort_keys=True, default=dict)
        return short_hash(asked.encode())


@dataclass(frozen=True, slots=True)
class PromptSet:
    """All prompts of a measurement, each asked for once."""

    prompts: tuple[BenchPrompt, ...]
    source: str
    """Where they come from, for people."""
    notes: tuple[str, ...] = ()
    """Whole sentences about what was read and the user should know."""

    @property
    def hash(self) -> str:
        """All prompts in 16 letters, in whatever order they come."""
        return hash_all(prompt.hash for prompt in self.prompts)

    def describe(self, num_asked: int, skipped: Sequence[str] = ()) -> dict[str, Any]:
        """Return for JSON which prompts these are, and how many of them were asked."""
        return {
            "source": self.source,
            "num": num_asked,
            "hash": self.hash,
            "skipped": list(skipped),
        }


@dataclass(slots=True)
class _Found:
    prompts: list[BenchPrompt] = field(default_factory=list)
    num_later_turns: int = 0


def hash_all(hashes: Any) -> str:
    """Return one hash for many, in whatever order they come."""
    return short_hash("\n".join(sorted(hashes)).encode())


def short_hash(data: bytes) -> str:
    """Return a hash of 16 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()[:16]


def read_prompt_set(
    names: Sequence[str], read_stdin: Callable[[], str], built_in: Path = BUILT_IN
) -> PromptSet:
    """Read all prompts that are named; a built-in set when none are."""
    found = _Found()
    if not names:
        _read_text(built_in.read_text("utf-8"), "the built-in set", ".jsonl", found)
    for name in names:
        if name == STDIN:
            text = read_stdin()
            suffix = ".jsonl" if text.lstrip().startswith("{") else ".txt"
            _read_text(text, "standard input", suffix, found)
        else:
            _read_path(Path(name), found)
    unique = {prompt.hash: prompt for prompt in reversed(found.prompts)}
    prompts = tuple(prompt for prompt in found.prompts if unique[prompt.hash] is prompt)
    notes = []
    if num_double := len(found.prompts) - len(prompts):
        notes.append(
            f"{num_double} of {len(found.prompts)} prompts repeat earlier ones and are left out; "
            "--runs asks every prompt several times."
        )
    if found.num_later_turns:
        notes.append(
            f"Conversations of which only the first turn is asked: {found.num_later_turns}."
        )
    own = f"the built-in {built_in.stem.replace('_', ' ')}"
    places = ["standard input" if name == STDIN else name for name in names]
    return PromptSet(prompts, ", ".join(places) or own, tuple(notes))


def _read_path(path: Path, found: _Found) -> None:
    if not path.exists():
        raise RequestError(
            f"There is no prompt file {path}.",
            "Name a .txt or .jsonl file, a folder, or - for standard input.",
        )
    if not path.is_dir():
        _read_text(_load(path), str(path), path.suffix or ".txt", found, task=path.stem)
        return
    files = [p for p in sorted(path.rglob("*")) if p.suffix in _FOLDER_SUFFIXES and p.is_file()]
    if not files:
        problem = f"The folder {path} holds no prompts."
        raise RequestError(problem, f"Put files ending in {', '.join(_FOLDER_SUFFIXES)} there.")
    for file in files:
        is_list = file.suffix == ".jsonl"
        task = file.stem if is_list else file.parent.name or "prompts"
        _read_text(_load(file), str(file), ".jsonl" if is_list else ".md", found, task=task)


def _load(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as error:
        problem = f"The prompt file {path} cannot be read: {error}."
        raise RequestError(problem, "Give text in UTF-8.") from error


def _read_text(text: str, name: str, suffix: str, found: _Found, task: str = "prompts") -> None:
    """Add the prompts of one text; how it is cut depends on what it is."""
    if not text.strip():
        problem = f"There are no prompts in {name}: it is empty."
        raise RequestError(problem, "Write at least one prompt into it.")
    if suffix not in (".jsonl", ".txt"):
        found.prompts.append(_plain(text.strip("\n"), task, name))
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{name}:{number}"
        if suffix == ".txt":
            found.prompts.append(_plain(line.strip(), task, where))
        else:
            found.prompts.append(_read_record(line, where, task, found))


def _plain(text: str, task: str, name: str) -> BenchPrompt:
    return BenchPrompt(({"role": "user", "content": text},), task, name, text)


def _read_record(line: str, where: str, task: str, found: _Found) -> BenchPrompt:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise RequestError(f"{where} is not JSON: {error}.", _REMEDY) from error
    if not isinstance(record, dict):
        raise RequestError(f"{where} is not a JSON object.", _REMEDY)
    messages, text = _read_messages(record, where)
    turns = record.get("turns")
    found.num_later_turns += isinstance(turns, list) and "messages" not in record and len(turns) > 1
    tools = record.get("tools") or ()
    if not isinstance(tools, list | tuple) or not all(isinstance(tool, dict) for tool in tools):
        raise RequestError(f"{where} has 'tools' that are no list of objects.", "Leave them out.")
    max_tokens, temperature = record.get("max_tokens"), record.get("temperature")
    try:  # the same checks as for a request, said with the line
        StopParams() if max_tokens is None else StopParams(max_tokens=max_tokens)
        SamplingParams() if temperature is None else SamplingParams(temperature=temperature)
    except RequestError as error:
        raise RequestError(f"{where}: {error.problem}", error.remedy) from error
    name = str(record.get("task", task))
    return BenchPrompt(messages, name, where, text, tuple(tools), max_tokens, temperature)


def _read_messages(
    record: Mapping[str, Any], where: str
) -> tuple[tuple[Mapping[str, Any], ...], str | None]:
    """Return what a record asks, as messages and, where it is one, as a text."""
    messages = record.get("messages")
    if messages is not None:
        is_list = isinstance(messages, list) and bool(messages)
        if not is_list or not all(isinstance(m, dict) and "role" in m for m in messages):
            raise RequestError(f"{where} has 'messages' that are no list of messages.", _REMEDY)
        return tuple(messages), None
    turns = record.get("turns")
    text = turns[0] if isinstance(turns, list) and turns else record.get("prompt")
    if not isinstance(text, str) or not text.strip():
        raise RequestError(f"{where} has neither a 'prompt' nor 'messages'.", _REMEDY)
    return ({"role": "user", "content": text},), text
