"""JSON schemas on their way into a grammar: written out, bounded, and searched for faults.

In:  a schema as a caller gave it.
Out: its text for llguidance with the style answers are to be written in; the place of a keyword
that an error names. What a schema means is llguidance's business.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from headlong.errors import RequestError

MAX_FIXED = 4000
"""Characters that a constant, a choice, a name or a pattern prescribes: they are parsed at once."""

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
"""The schema of `json_object`."""

_ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_SPREAD = {"whitespace_pattern": r"[ ]|\n[ ]{0,24}"}
"""Where nothing is known of an object, a model does better in lines and indents of its own."""

_PATTERN_PART = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\{(\d+)(?:,\d*)?\}|\(|\)|.", re.DOTALL)
_NAMING = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose children are names, not keywords."""


class Owner(NamedTuple):
    """What a schema belongs to, for error messages."""

    whose: str
    """The beginning of a sentence."""
    param: str
    """The field of the request that holds it."""
    is_lenient: bool = False
    """Whether keywords that cannot be followed are left out, with a warning."""


ANSWER = Owner("The JSON schema", "response_format.json_schema.schema")


def written_schema(schema: Mapping[str, Any], owner: Owner) -> str:
    """Return `schema` as JSON, with our way of writing answers in it."""
    style = _SPREAD if schema == ANY_OBJECT else _ONE_LINE
    style = {**style, "lenient": True} if owner.is_lenient else style
    try:
        text = json.dumps({**schema, "x-guidance": style}, allow_nan=False)
        keywords = list(_keywords(schema, ""))
    except (TypeError, ValueError, RecursionError) as error:
        problem = f"{owner.whose} is not JSON: {error}."
        remedy = "Use plain JSON values, nested less than 60 deep."
        raise RequestError(problem, remedy, owner.param) from error
    for path, keyword, value in keywords:
        length = max(_fixed_lengths(keyword, value), default=0)
        if length > MAX_FIXED:
            problem = f"{owner.whose} prescribes {length} characters at {path}."
            raise RequestError(problem, f"Use at most {MAX_FIXED}.", owner.param)
    return text


def closed_schema(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a strict schema as OpenAI reads it: objects have the properties they name, no more."""
    try:
        return dict(_closed(schema))
    except RecursionError:
        return schema  # refused when it is written out


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    closed = dict(schema)
    for keyword, value in schema.items():
        if keyword in _NAMING and isinstance(value, Mapping):
            closed[keyword] = {name: _closed(child) for name, child in value.items()}
        elif keyword in ("items", "prefixItems", "anyOf", "oneOf"):
            closed[keyword] = _closed(value)
    # The parts of an `allOf` name only some of the properties each.
    if "properties" in schema and not {"allOf", "patternProperties"} & schema.keys():
        closed.setdefault("additionalProperties", False)
    return closed


def _fixed_lengths(keyword: str, value: object) -> Iterator[int]:
    """Yield the lengths of the texts that a keyword prescribes letter by letter."""
    if keyword == "const":
        yield len(json.dumps(value))
    elif keyword in ("enum", "required") and isinstance(value, list):
        yield from (len(json.dumps(one)) for one in value)
    elif keyword == "pattern" and isinstance(value, str):
        yield pattern_length(value)
    elif keyword == "patternProperties" and isinstance(value, Mapping):
        yield from map(pattern_length, value)
    elif keyword in _NAMING and isinstance(value, Mapping):
        yield from map(len, value)


def pattern_length(pattern: str) -> int:
    """Return how many letters a pattern asks for: `(a{1000}){1000}` keeps a parser busy."""
    outer: list[int] = []
    total = last = 0
    for part in _PATTERN_PART.finditer(pattern):
        if part[1]:
            total += last * (int(part[1]) - 1)
            last *= int(part[1])
        elif part[0].startswith("("):
            outer.append(total)
            total = 0
        elif part[0] == ")":
            last, total = total, total + (outer.pop() if outer else 0)
        else:
            last, total = 1, total + 1
    return total


def find_fault(schema: Mapping[str, Any], problem: str) -> str | None:
    """Return the JSON pointer of the keyword that a problem names."""
    words = set(re.findall(r"[$\w]+", problem))
    found = [(path, value) for path, keyword, value in _keywords(schema, "") if keyword in words]
    # One whose value is named as well is surely meant: "Unknown format: colour".
    named = [path for path, value in found if isinstance(value, str) and value in problem]
    return next(iter([*named, *(path for path, _ in found)]), None)


def _keywords(schema: object, path: str) -> Iterator[tuple[str, str, object]]:
    """Walk through a schema and yield (path, keyword, value), parents first."""
    if isinstance(schema, list):
        for place, one in enumerate(schema):
            yield from _keywords(one, f"{path}/{place}")
    if not isinstance(schema, Mapping):
        return
    for keyword, value in schema.items():
        yield f"{path}/{keyword}", keyword, value
        if keyword in _NAMING and isinstance(value, Mapping):
            for name, child in value.items():
                yield from _keywords(child, f"{path}/{keyword}/{name}")
        elif keyword not in ("const", "enum", "default", "examples"):
            yield from _keywords(value, f"{path}/{keyword}")
