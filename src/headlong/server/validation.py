"""Validation errors: from pydantic's list of errors to one sentence with a remedy.

In:  FastAPI's validation error and the server's own OpenAPI document.
Out: a `Refusal` that names the field, its value, and the allowed values.
The allowed values are read from the published document, so the two cannot differ.
"""

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from fastapi import Request
from fastapi.exceptions import RequestValidationError

from headlong.server.refusal import Refusal

MAX_SHOWN = 80
"""Characters of a value that a message repeats."""

Place: TypeAlias = tuple[str | int, ...]
Schema: TypeAlias = Mapping[str, Any]

_REF = "#/components/schemas/"
_MAX_FIELDS = 12

_OF_KEY = "[key]"
"""How pydantic marks a complaint about an object's key rather than the value under it."""


@dataclass(frozen=True, slots=True)
class _Complaint:
    """One of pydantic's errors, with its place in the body as the client wrote it."""

    kind: str
    place: Place
    value: object


def refuse_body(request: Request, error: RequestValidationError) -> Refusal:
    """Return the refusal of a body that FastAPI could not take."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        where, what = first["loc"][-1], first.get("ctx", {}).get("error", "a syntax error")
        message = f"The body is not JSON: {what} at character {where}."
        return Refusal(400, message, code="invalid_json")
    content_type = request.headers.get("content-type", "")
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        message = f"The body's Content-Type is {content_type!r}. It must be application/json."
        return Refusal(400, message, code="invalid_content_type")
    document: Schema = request.app.openapi()
    route = document["paths"][request.scope["route"].path][request.method.lower()]
    schema = route["requestBody"]["content"]["application/json"]["schema"]
    return _refuse(_worst(error), _resolve(schema, document["components"]["schemas"]))


def _worst(error: RequestValidationError) -> _Complaint:
    """Pick the complaint to tell: of the first field that has any, the one that goes deepest.

    A value that may be one of several kinds gets a complaint from each; the kind that got furthest
    is the one that was meant.
    """
    complaints = [_place(one, error.body) for one in error.errors()]
    field = complaints[0].place[:1]
    same_field = [one for one in complaints if one.place[:1] == field]
    return max(same_field, key=lambda one: len(one.place))  # the first of equals


def _place(error: Mapping[str, Any], body: object) -> _Complaint:
    """Follow an error's location through the body; kinds of a union stand in it and are skipped."""
    kind, place, value = str(error["type"]), list[str | int](), cast(Any, body)
    steps = error["loc"][1:]  # the first is "body"
    if steps[-1:] == (_OF_KEY,):
        kind, steps = _OF_KEY, steps[:-1]
    for i, step in enumerate(steps):
        if _holds(value, step):
            value = value[step]
        elif kind != "missing" or i < len(steps) - 1:
            continue
        place.append(step)
    if kind.startswith("union_tag") and isinstance(value, Mapping):
        tag = str(error["ctx"]["discriminator"]).strip("'")
        kind = kind if tag in value else "missing"
        return _Complaint(kind, (*place, tag), value.get(tag))
    return _Complaint(kind, tuple(place), value)


def _holds(value: Any, step: str | int) -> bool:
    if isinstance(value, Mapping):
        return step in value
    return isinstance(value, list) and isinstance(step, int) and step < len(value)


def _refuse(complaint: _Complaint, schema: Schema) -> Refusal:
    name = _written(complaint.place) or "The body"
    param = name if complaint.place else None
    if complaint.kind == "extra_forbidden":
        message = _unknown_field(complaint.place, _walk(schema, complaint.place[:-1]))
        return Refusal(400, message, param=param, code="unknown_field")
    if complaint.kind == _OF_KEY:
        return _refuse_key(complaint.place, schema)
    allowed = _describe(_walk(schema, complaint.place))
    if complaint.kind == "missing":
        message = f"{name} is missing. It must be {allowed}."
        return Refusal(400, message, param=param, code="missing_field")
    message = f"{name} is {_shown(complaint.value)}. It must be {allowed}."
    return Refusal(400, message, param=param, code="invalid_value")


def _refuse_key(place: Place, schema: Schema) -> Refusal:
    """Refuse a name that is none: an object whose names follow a pattern has a foreign one."""
    kinds = [kind for one in _walk(schema, place[:-1]) for kind in _kinds(one)]
    patterns = [pattern for kind in kinds for pattern in kind.get("patternProperties", ())]
    name, key = _written(place[:-1]), _shown(place[-1])
    message = f"{name} has the key {key}. Its keys must match {' or '.join(patterns)}."
    return Refusal(400, message, param=name, code="invalid_value")


def _unknown_field(place: Place, around: Sequence[Schema]) -> str:
    kinds = [kind for one in around for kind in _kinds(one)]
    known = list(dict.fromkeys(name for kind in kinds for name in kind.get("properties", ())))
    near = difflib.get_close_matches(str(place[-1]), known, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Known are: {', '.join(sorted(known))}."
    return f"There is no field {_written(place)!r}. {hint}"


def _resolve(schema: Any, named: Schema) -> Any:
    """Return a schema with what they name in the place of references; no body holds itself."""
    if isinstance(schema, list):
        return [_resolve(one, named) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _resolve(named[schema["$ref"].removeprefix(_REF)], named)
    return {name: _resolve(one, named) for name, one in schema.items()}


def _walk(schema: Schema, place: Place) -> list[Schema]:
    """Return what the document says of a place; several schemas where a value may be of kinds."""
    current = [schema]
    for step in place:
        kinds = [kind for one in current for kind in _kinds(one)]
        current = [below for kind in kinds for below in _below(kind, step)]
    return current


def _kinds(schema: Schema) -> list[Schema]:
    """Return the schemas of the kinds a value may be of; one where it may be of one only."""
    kinds = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    return [one for kind in kinds for one in _kinds(kind)] if kinds else [schema]


def _below(schema: Schema, step: str | int) -> list[Schema]:
    if isinstance(step, int):
        return [schema["items"]] if isinstance(schema.get("items"), Mapping) else []
    if step in schema.get("properties", {}):
        return [schema["properties"][step]]
    named = schema.get("patternProperties", {}).values()
    others = [*named, schema.get("additionalProperties")]
    return [one for one in others if isinstance(one, Mapping)]


def _written(place: Place) -> str:
    """Write a place the way OpenAI does: messages[0].content."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place)
    return text.removeprefix(".")


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def _describe(schemas: Sequence[Schema]) -> str:
    kinds = [kind for schema in schemas for kind in _kinds(schema)]
    # That a value may be null is not told.
    words = [_one_kind(kind) for kind in kinds if kind.get("type") != "null"]
    if words:
        return ", or ".join(dict.fromkeys(words))
    reasons = [schema["description"] for schema in schemas if "description" in schema]
    return f"left out ({str(reasons[0]).rstrip('.')})" if reasons else "left out"


def _one_kind(schema: Schema) -> str:
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return f"one of {', '.join(json.dumps(value) for value in schema['enum'])}"
    match schema.get("type"):
        case "number" | "integer":
            noun = "a number" if schema["type"] == "number" else "a whole number"
            return noun + _range(schema)
        case "boolean":
            return "true or false"
        case "string" if "pattern" in schema:
            return f"a text that matches {schema['pattern']}"
        case "string":
            return "a text with at least one character" if schema.get("minLength") else "a text"
        case "array":
            return f"a list{_length(schema)}, each {_describe([schema['items']])}"
        case "object":
            needed = schema.get("required", ())
            names = [*needed, *(one for one in schema.get("properties", ()) if one not in needed)]
            shown = ", ".join(names[:_MAX_FIELDS]) + (", …" if len(names) > _MAX_FIELDS else "")
            return f"an object with {shown}" if names else "an object"
    return "a value"


def _range(schema: Schema) -> str:
    bounds = [schema.get(name) for name in ("minimum", "maximum", "exclusiveMinimum")]
    # Documents write 100.0 for 100.
    low, high, above = (int(x) if x is not None and x == int(x) else x for x in bounds)
    if above is not None:
        return f" above {above}" + ("" if high is None else f" and at most {high}")
    if low is not None and high is not None:
        return f" from {low} to {high}"
    return f" of at least {low}" if low is not None else ""


def _length(schema: Schema) -> str:
    low, high = schema.get("minItems"), schema.get("maxItems")
    if low is not None and high is not None:
        return f" of {low} to {high} items"
    if high is not None:
        return f" of at most {high} items"
    return f" of at least {low}" if low is not None else ""
