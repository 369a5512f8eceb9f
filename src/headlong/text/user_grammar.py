"""Grammars that callers give: a pattern, one of several texts, or a grammar.

In:  a `response_format` of type "regex", "choice" or "grammar".
Out: the grammar in llguidance's Lark. Patterns match the whole answer, as in vLLM.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from headlong.errors import RequestError
from headlong.text.grammar_rules import HEADER
from headlong.text.json_schemas import MAX_FIXED, pattern_length

MAX_GRAMMAR = 20_000
"""Most characters that a grammar may have, and that it may prescribe."""

USER_GRAMMAR_KINDS = ("regex", "choice", "grammar")

_UNESCAPED = re.compile(r"\\.|/|\n", re.DOTALL)
_ESCAPES = {"/": r"\/", "\n": r"\n"}

_USES = {
    "regex": "{'type': 'regex', 'pattern': '[0-9]+'}",
    "choice": "{'type': 'choice', 'choices': ['yes', 'no']}",
    "grammar": "{'type': 'grammar', 'grammar': 'root ::= \"yes\" | \"no\"'}",
}


def user_grammar(response_format: Mapping[str, Any]) -> str | None:
    """Return the grammar that a response format contains, if any."""
    kind = response_format.get("type")
    if kind == "regex":
        return _of_pattern(_text(response_format, kind, "pattern"))
    if kind == "grammar":
        return _of_grammar(_text(response_format, kind, "grammar"))
    if kind != "choice":
        return None
    choices = response_format.get("choices")
    is_list = isinstance(choices, Sequence) and not isinstance(choices, str)
    if not is_list or not choices or not all(isinstance(one, str) and one for one in choices):
        raise _misused(kind, "choices", choices)
    _check_length(kind, sum(map(len, choices)), MAX_GRAMMAR)
    return f"{HEADER}\nstart: {' | '.join(map(json.dumps, choices))}"


def _of_pattern(pattern: str) -> str:
    _check_length("regex", pattern_length(pattern), MAX_FIXED)
    bare = pattern.removeprefix("^")
    bare = re.sub(r"(?<!\\)((?:\\\\)*)\$$", r"\1", bare)  # a whole answer needs no borders
    escaped = _UNESCAPED.sub(lambda found: _ESCAPES.get(found[0], found[0]), bare)
    return f"{HEADER}\nstart: /{escaped}/"


def _of_grammar(grammar: str) -> str:
    """Return a grammar of llama.cpp's kind (GBNF) or of llguidance's as the latter."""
    from llguidance.gbnf_to_lark import any_to_lark

    _check_length("grammar", max(len(grammar), pattern_length(grammar)), MAX_GRAMMAR)
    try:
        lark: str = any_to_lark(grammar)
    except Exception as error:  # the library raises nothing narrower
        problem = f"The grammar cannot be read: {error}."
        raise RequestError(problem, f"Write it as llama.cpp does: {_USES['grammar']}.") from error
    return lark if lark.startswith("%llguidance") else f"{HEADER}\n{lark}"


def _text(response_format: Mapping[str, Any], kind: str, name: str) -> str:
    text = response_format.get(name)
    if not isinstance(text, str) or not text:
        raise _misused(kind, name, text)
    return text


def _misused(kind: str, name: str, value: object) -> RequestError:
    problem = f"response_format of type {kind!r} has the {name} {value!r}."
    return RequestError(problem, f"Write it like {_USES[kind]}.", "response_format")


def _check_length(kind: str, length: int, most: int) -> None:
    if length > most:
        problem = f"response_format of type {kind!r} prescribes {length} characters."
        raise RequestError(problem, f"Use at most {most}.", "response_format")
