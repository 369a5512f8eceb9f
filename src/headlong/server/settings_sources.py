"""Where settings come from: flags, then the environment, then a TOML file, then defaults.

In:  the flags that were given, the environment, maybe a file.
Out: `EffectiveSettings`: the settings, and for each where its value came from. A value that cannot
     be is refused with its place; an unknown key of the file with its nearest neighbour.
API keys of all sources add up: given one by one, in a file, or in a table of the settings file.
A refusal names the place and the key's name, and never shows the key itself.
"""

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headlong.config import MODEL_OPTIONS
from headlong.errors import RequestError
from headlong.server import setting_kinds as kinds
from headlong.server.setting_kinds import Kind
from headlong.server.settings import (
    KEY_PATTERN,
    ApiKey,
    ServerSettings,
    check_value,
    declared_settings,
    kind_of,
)

PREFIX = "HEADLONG_"
DEFAULT = "default"

CONFIG, API_KEY, API_KEY_FILE = "config", "api_key", "api_key_file"

_EXTRA_NAMES = (CONFIG, API_KEY, API_KEY_FILE)
"""Names of flags and variables that are no field of `ServerSettings`."""

_NAME_PATTERN = r"[A-Za-z0-9._@-]{1,64}"
_FIELDS: dict[str, Kind] = {
    "name": kinds.text("1 to 64 letters, digits, or any of . _ @ -", _NAME_PATTERN),
    "mtp": kinds.mtp(),
    "max_concurrent": kinds.whole(1),
}
_SECRETS = ("key", "key_env", "key_file")


@dataclass(frozen=True, slots=True)
class EffectiveSettings:
    """Settings, and where each value came from."""

    settings: ServerSettings
    sources: Mapping[str, str]
    """By field name: a flag, a variable, a file, or "default"."""
    notes: tuple[str, ...] = ()
    """Whole sentences the user should read."""

    def shown(self) -> Iterator[tuple[str, Any, str]]:
        """Yield name, value and source of every setting; keys by name only."""
        for declared in declared_settings():
            yield declared.name, getattr(self.settings, declared.name), self.sources[declared.name]
        for key in self.settings.api_keys:
            own = f", mtp {key.mtp}" if key.mtp is not None else ""
            if key.max_concurrent is not None:
                own += f", {key.max_concurrent} at one time"
            yield f"API key {key.name}", f"(hidden){own}", self.sources[f"api_keys.{key.name}"]


def read_settings(flags: Mapping[str, Any], environ: Mapping[str, str]) -> EffectiveSettings:
    """Join flags, environment and file; a flag that was not given is None or absent."""
    given = {name: value for name, value in flags.items() if value is not None and value != []}
    variables = {name: value for name, value in environ.items() if value}
    config = given.get(CONFIG) or variables.get(f"{PREFIX}CONFIG")
    table = {} if config is None else _read_table(Path(config))
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for declared in declared_settings():
        name, flag, variable = declared.name, flag_name(declared.name), variable_name(declared.name)
        sources[name], kind = DEFAULT, kind_of(declared)
        if name in given:
            values[name] = check_value(kind, given[name], flag)
            sources[name] = flag if given[name] is not False else f"--no-{flag[2:]}"
        elif variable in variables:
            values[name] = check_value(kind, variables[variable], variable)
            sources[name] = variable
        elif name in table:
            values[name] = check_value(kind, table[name], f"{name} in {config}")
            sources[name] = str(config)
    keys = list(_read_keys(given, variables, table, str(config)))
    sources |= {f"api_keys.{key.name}": source for key, source in keys}
    settings = ServerSettings(**values, api_keys=tuple(key for key, _ in keys))
    notes = (*_misspelt(variables), *_idle(settings, sources))
    return EffectiveSettings(settings, sources, notes)


def flag_name(name: str) -> str:
    """Return how a setting is called on the command line."""
    return f"--{name.replace('_', '-')}"


def variable_name(name: str) -> str:
    """Return how a setting is called in the environment."""
    return f"{PREFIX}{name.upper()}"


def _read_table(path: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        problem = f"The settings file {path} cannot be read: {reason}."
        raise RequestError(problem, "Check --config or HEADLONG_CONFIG.") from error
    except tomllib.TOMLDecodeError as error:
        problem = f"The settings file {path} is not TOML: {error}."
        raise RequestError(problem, "deploy/headlong.toml is an example.") from error
    known = [declared.name for declared in declared_settings()] + ["api_keys", API_KEY_FILE]
    for name in table:
        if name not in known:
            near = _nearest(name.replace("-", "_"), known)
            remedy = f"Did you mean {near!r}?" if near else f"Known are: {', '.join(known)}."
            raise RequestError(f"{path} has the unknown setting {name!r}.", remedy)
    return table


def _read_keys(
    flags: Mapping[str, Any],
    variables: Mapping[str, str],
    table: Mapping[str, Any],
    config: str,
) -> Iterator[tuple[ApiKey, str]]:
    """Yield every API key with where it came from; they are named after that unless they say."""
    flag, variable = flag_name(API_KEY), variable_name(API_KEY)
    for number, text in enumerate(flags.get(API_KEY, ()), start=1):
        yield ApiKey(_checked(text, flag), f"flag-{number}"), flag
    for number, text in enumerate(variables.get(variable, "").split(","), start=1):
        if text.strip():
            yield ApiKey(_checked(text.strip(), variable), f"env-{number}"), variable
    file = flags.get(API_KEY_FILE) or variables.get(variable_name(API_KEY_FILE))
    file = file or table.get(API_KEY_FILE)
    if file is not None:
        for key in _keys_from_file(Path(str(file))):
            yield key, str(file)
    tables = table.get("api_keys", [])
    if not isinstance(tables, list):
        problem = f"api_keys in {config} is {type(tables).__name__}, not a list of tables."
        raise RequestError(problem, "Write [[api_keys]] with two brackets, once per key.")
    for number, entry in enumerate(tables, start=1):
        yield _key_from_table(entry, number, config, variables), config


def _misspelt(variables: Mapping[str, str]) -> Iterator[str]:
    """Say which variables look like a setting but are none; others share the prefix rightfully."""
    known = [declared.name for declared in declared_settings()] + list(_EXTRA_NAMES)
    for variable in variables:
        name = variable.removeprefix(PREFIX).lower()
        near = _nearest(name, known) if variable.startswith(PREFIX) and name not in known else None
        if near is not None:
            yield f"{variable} is set, but is no setting; did you mean {variable_name(near)}?"


def _idle(settings: ServerSettings, sources: Mapping[str, str]) -> Iterator[str]:
    """Say which options of a model do nothing, since engines elsewhere run it."""
    if settings.engine == "local":
        return
    for name in MODEL_OPTIONS:
        if name not in ("model", "head") and sources[name] != DEFAULT:
            yield f"{name} ({sources[name]}) does nothing: {settings.engine} decides that itself."


def _nearest(name: str, known: Sequence[str]) -> str | None:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    return near[0] if near else None


def _keys_from_file(path: Path) -> Iterator[ApiKey]:
    """Yield the keys of a file: a line each, as `KEY` or as `NAME KEY`; # begins a comment."""
    for number, line in enumerate(_read(path).splitlines(), start=1):
        words = line.split("#")[0].split()
        place = f"line {number} of {path}"
        if len(words) > 2:
            raise RequestError(f"There are {len(words)} words in {place}.", "Write NAME KEY.")
        if words:
            name = words[0] if len(words) == 2 else f"{path.stem}-{number}"
            checked = check_value(_FIELDS["name"], name, f"name of {place}")
            yield ApiKey(_checked(words[-1], place), checked)


def _key_from_table(
    table: object, number: int, config: str, variables: Mapping[str, str]
) -> ApiKey:
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
    fields = {
        name: check_value(kind, table[name], f"{name} of {place}")
        for name, kind in _FIELDS.items()
        if name in table
    }
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
        problem = f"The key file {path} cannot be read: {reason}."
        raise RequestError(problem, "Check its name and permissions.") from error
