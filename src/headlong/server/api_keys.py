"""API keys as they are written down: one by one, in a file, or in a table of the settings file.

In:  text and tables. Out: `ApiKey`s, checked. A refusal names the place and the key's name, and
     never shows the key itself.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headlong.errors import RequestError
from headlong.server import setting_kinds as kinds
from headlong.server.setting_kinds import Kind
from headlong.server.settings import KEY_PATTERN, ApiKey

_NAME_PATTERN = r"[A-Za-z0-9._@-]{1,64}"
_FIELDS: dict[str, Kind] = {
    "name": kinds.text("1 to 64 letters, digits, or any of . _ @ -", _NAME_PATTERN),
    "mtp": kinds.mtp(),
    "max_concurrent": kinds.whole(1),
}
_SECRETS = ("key", "key_env", "key_file")


def plain_key(text: str, name: str, place: str) -> ApiKey:
    """Return a key that came alone, under a name made for it."""
    return ApiKey(_checked(text, place), name)


def keys_from_file(path: Path) -> Iterator[ApiKey]:
    """Yield the keys of a file: a line each, as `KEY` or as `NAME KEY`; # begins a comment."""
    for number, line in enumerate(_read(path).splitlines(), start=1):
        words = line.split("#")[0].split()
        place = f"line {number} of {path}"
        if len(words) > 2:
            raise RequestError(f"There are {len(words)} words in {place}.", "Write NAME KEY.")
        if words:
            name = words[0] if len(words) == 2 else f"{path.stem}-{number}"
            yield ApiKey(_checked(words[-1], place), _field("name", name, place))


def key_from_table(table: object, number: int, config: str, variables: Mapping[str, str]) -> ApiKey:
    """Return the key of one `[[api_keys]]` table of a settings file."""
    place = f"[[api_keys]] number {number} in {config}"
    if not isinstance(table, dict):
        raise RequestError(f"{place} is {table!r}.", "Write a table with key and name.")
    known = (*_SECRETS, *_FIELDS)
    unknown = [name for name in table if name not in known]
    if unknown:
        raise RequestError(f"{place} has {unknown[0]!r}.", f"Known are: {', '.join(known)}.")
    given = [name for name in _SECRETS if name in table]
    if len(given) != 1:
        raise RequestError(
            f"{place} has {' and '.join(given) or 'no key'}.",
            "Give one of: key, key_env (a variable that holds it), key_file (a file).",
        )
    key = _checked(_secret(given[0], table[given[0]], place, variables), place)
    fields = {name: _field(name, table[name], place) for name in _FIELDS if name in table}
    return ApiKey(key, **{"name": f"key-{number}", **fields})


def _secret(kind: str, value: object, place: str, variables: Mapping[str, str]) -> str:
    if not isinstance(value, str):
        raise RequestError(f"{kind} of {place} is not text.", "Put it between quotes.")
    if kind == "key_file":
        return _read(Path(value)).strip()
    if kind == "key_env":
        if value not in variables:
            problem = f"{place} takes its key from the variable {value}, which is not set."
            raise RequestError(problem, f"Set {value}, or write the key another way.")
        return variables[value]
    return value


def _field(name: str, value: object, place: str) -> Any:
    try:
        return _FIELDS[name].read(value)
    except ValueError:
        problem = f"{name} of {place} is {value!r}."
        raise RequestError(problem, f"It must be {_FIELDS[name].allowed}.") from None


def _checked(key: str, place: str) -> str:
    if re.fullmatch(KEY_PATTERN, key) is None:
        raise RequestError(
            f"The API key from {place} cannot be used; it has {len(key)} characters.",
            "Take 8 to 256 letters, digits and signs without spaces, for example from "
            "`openssl rand -hex 24`.",
        )
    return key


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise RequestError(
            f"The key file {path} cannot be read: {reason}.", "Check its name and permissions."
        ) from error
