"""Commands and options of `headlong`, read from the parsers, for shell completion.

In:  the verbs. Out: a record of each command, with its options and the kinds of their values.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headlong.cli.verbs import VERBS, make_verb_parser, sub_verbs_of

ValueKind = Literal["nothing", "choice", "model", "path", "text"]

_KINDS: dict[str, ValueKind] = {"MODEL": "model", "FILE": "path", "DIR": "path"}


@dataclass(frozen=True, slots=True)
class Argument:
    """An option or a positional argument."""

    names: tuple[str, ...]
    """As typed: "--model", "-m"; empty for a positional argument."""
    about: str
    value_kind: ValueKind
    choices: tuple[str, ...] = ()
    repeats: bool = False


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """A verb, or a verb with its sub-verb."""

    words: str
    about: str
    options: tuple[Argument, ...]
    positionals: tuple[Argument, ...]


def read_command_specs() -> Iterator[CommandSpec]:
    """Read the specification of every command."""
    for verb, about in VERBS.items():
        yield _read_command_spec(verb, about)
        for sub_verb, sub_about in sub_verbs_of(verb).items():
            yield _read_command_spec(f"{verb} {sub_verb}", sub_about)


def _read_command_spec(words: str, about: str) -> CommandSpec:
    arguments = [
        _read_argument(action)
        for action in make_verb_parser(words)._actions
        if action.help is not argparse.SUPPRESS
    ]
    options = tuple(one for one in arguments if one.names)
    return CommandSpec(words, about, options, tuple(one for one in arguments if not one.names))


def _read_argument(action: argparse.Action) -> Argument:
    choices = tuple(map(str, action.choices or ()))
    metavar = str(action.metavar or "")
    value_kind: ValueKind = _KINDS.get(metavar, "text")
    if action.nargs == 0:
        value_kind = "nothing"
    elif choices:
        value_kind = "choice"
    elif "|" in metavar:  # such as auto|off|K, where capitals stand for something
        value_kind = "choice"
        choices = tuple(word for word in metavar.split("|") if word.islower())
    elif action.type is Path:
        value_kind = "path"
    repeats = isinstance(action, argparse._AppendAction) or action.nargs in ("*", "+")
    names = tuple(action.option_strings)
    return Argument(names, _shorten(action.help or ""), value_kind, choices, repeats)


def _shorten(about: str) -> str:
    """Return the first clause of a help text: a shell has one line for it."""
    for end in ("; ", " (", ". "):
        about = about.split(end)[0]
    return about.strip("()").replace("%%", "%")
