"""Conversations on disk: one readable JSON file each, in the user's state folder.

In:  a name, and the messages of a conversation with the model it is held with.
Out: the same again, in this run or a later one.
"""

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

from headlong.cli.state import state_dir, state_errors, write_private
from headlong.cli.verbs import nearest
from headlong.errors import RequestError

LAST = "last"
"""The name of the conversation that was held in a terminal and given no name."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation as it is kept."""

    model: str
    """What a user types to get the model."""
    system: str | None = None
    messages: list[dict[str, str]] = field(default_factory=list)


def save_session(name: str, session: Session) -> Path:
    """Keep a conversation under a name, in the place of an earlier one."""
    path = _path_of(name)
    write_private(path, json.dumps(asdict(session), indent=2, ensure_ascii=False) + "\n")
    return path


def load_session(name: str) -> Session:
    """Return the conversation that was kept under a name."""
    path = _path_of(name)
    known = list_sessions()
    if name not in known:
        near = nearest(name, known)
        guess = f"Did you mean {near!r}? " if near else ""
        raise RequestError(f"No conversation is called {name!r}.", guess + _listed(known))
    with state_errors(path):
        text = path.read_text("utf-8")
    try:
        session = Session(**json.loads(text))
        roles = [one["role"] for one in session.messages]
        texts = [session.system or "", *(one["content"] for one in session.messages)]
    except (ValueError, TypeError, KeyError) as error:
        problem = f"{path} is not a conversation as /save writes it: {error}."
        raise RequestError(problem, "Mend or remove it.") from error
    in_turn = ["user", "assistant"] * (len(roles) // 2)
    if roles != in_turn or not all(isinstance(text, str) for text in texts):
        problem = f"{path} does not hold messages of user and assistant in turn."
        raise RequestError(problem, "Mend or remove it.")
    return session


def list_sessions() -> list[str]:
    """Return the names of all that are kept, the latest first."""
    paths = (state_dir() / "sessions").glob("*.json")
    return [path.stem for path in sorted(paths, key=lambda one: -one.stat().st_mtime)]


def describe_sessions() -> str:
    """Say which conversations are kept."""
    return _listed(list_sessions())


def _listed(names: list[str]) -> str:
    return f"Kept are: {', '.join(names)}." if names else "None is kept yet; /save NAME keeps one."


def _path_of(name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise RequestError(
            f"{name!r} cannot be the name of a conversation.",
            "Use letters, digits, dots, dashes and underscores.",
        )
    return state_dir() / "sessions" / f"{name}.json"
