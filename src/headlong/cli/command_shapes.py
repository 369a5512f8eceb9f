"""What can be typed behind `headlong`: read off the parsers, for shells to complete.

In:  the verbs. Out: a record of each command, with its options and the values they take.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headlong.cli.verbs import VERBS, make_verb_parser, sub_verbs_of

Takes = Literal["nothing", "choice", "model", "path", "text"]

_KINDS: dict[str, Takes] = {"MODEL": "model", "FILE": "path", "DIR": "path"}


@dataclass(frozen=True, slots=True)
class Argument:
    """An option, or what may stand without one."""

    names: tuple[str, ...]
    """As typed: "--model", "-m"; empty for what stands without an option."""
    about: str
    takes: Takes
    choices: tuple[str, ...] = ()
    repeats: bool = False


@dataclass(frozen=True, slots=True)
class CommandShape:
    """A verb, or a verb with its sub-verb."""

    words: str
    about: str
    options: tuple[Argument, ...]
    positionals: tuple[Argument, ...]


def read_shapes() -> Iterator[CommandShape]:
    """Read the shape of every command."""
    for verb, about in VERBS.items():
        yield _read_shape(verb, about)
        for sub_verb, sub_about in sub_verbs_of(verb).items():
            yield _read_shape(f"{verb} {sub_verb}", sub_about)


def _read_shape(words: str, about: str) -> CommandShape:
    arguments = [
        _read_argument(action)
        for action in make_verb_parser(words)._actions
        if action.help is not argparse.SUPPRESS
    ]
    options = tuple(one for one in arguments if one.names)
    return CommandShape(words, about, options, tuple(one for one in arguments if not one.names))


def _read_argument(action: argparse.Action) -> Argument:
    choices = tuple(map(str, action.choices or ()))
    metavar = str(action.metavar or "")
    takes: Takes = _KINDS.get(metavar, "text")
    if action.nargs == 0:
        takes = "nothing"
    elif choices:
        takes = "choice"
    elif "|" in metavar:  # such as auto|off|K, where capitals stand for something
        takes = "choice"
        choices = tuple(word for word in metavar.split("|") if word.islower())
    elif action.type is Path:
        takes = "path"
    repeats = isinstance(action, argparse._AppendAction) or action.nargs in ("*", "+")
    names = tuple(action.option_strings)
    return Argument(names, _shorten(action.help or ""), takes, choices, repeats)


def _shorten(about: str) -> str:
    """Return the first clause of a help text: a shell has one line for it."""
    for end in ("; ", " (", ". "):
        about = about.split(end)[0]
    return about.strip("()").replace("%%", "%")
