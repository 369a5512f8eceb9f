"""A body that does not fit: from pydantic's list of complaints to one sentence a person can act on.

In:  FastAPI's validation error and the server's own OpenAPI document.
Out: a `Refusal` that names the field, the value it had, and everything it may be.
The allowed values are read from the published document, so the two cannot differ.
"""

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
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
    if not _is_json(content_type):
        message = f"The body's Content-Type is {content_type!r}. It must be application/json."
        return Refusal(400, message, code="invalid_content_type")
    document: Schema = request.app.openapi()
    schema = _body_schema(request, document)
    return _refuse(_worst(error), schema, document)


def _is_json(content_type: str) -> bool:
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type == "application/json" or media_type.endswith("+json")


def _body_schema(request: Request, document: Schema) -> Schema:
    """Find what the published document says of this route's body."""
    path, method = request.scope["route"].path, request.method.lower()
    content = document["paths"][path][method]["requestBody"]["content"]
    schema: Schema = content["application/json"]["schema"]
    return schema


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


def _refuse(complaint: _Complaint, schema: Schema, document: Schema) -> Refusal:
    name = _written(complaint.place) or "The body"
    param = name if complaint.place else None
    if complaint.kind == "extra_forbidden":
        known = _known_fields(schema, complaint.place[:-1], document)
        return Refusal(
            400, _unknown_field(complaint.place, known), param=param, code="unknown_field"
        )
    if complaint.kind == _OF_KEY:
        return _refuse_key(complaint.place, schema, document)
    allowed = _describe(_walk([schema], complaint.place, document), document)
    if complaint.kind == "missing":
        message = f"{name} is missing. It must be {allowed}."
        return Refusal(400, message, param=param, code="missing_field")
    message = f"{name} is {_shown(complaint.value)}. It must be {allowed}."
    return Refusal(400, message, param=param, code="invalid_value")


def _refuse_key(place: Place, schema: Schema, document: Schema) -> Refusal:
    """Refuse a name that is none: an object whose names follow a pattern has a foreign one."""
    kinds = [
        kind for one in _walk([schema], place[:-1], document) for kind in _kinds(one, document)
    ]
    patterns = [pattern for kind in kinds for pattern in kind.get("patternProperties", ())]
    name, key = _written(place[:-1]), _shown(place[-1])
    message = f"{name} has the key {key}. Its keys must match {' or '.join(patterns)}."
    return Refusal(400, message, param=name, code="invalid_value")


def _unknown_field(place: Place, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(str(place[-1]), known, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Known are: {', '.join(sorted(known))}."
    return f"There is no field {_written(place)!r}. {hint}"


def _known_fields(schema: Schema, place: Place, document: Schema) -> list[str]:
    kinds = [kind for one in _walk([schema], place, document) for kind in _kinds(one, document)]
    return list(dict.fromkeys(name for kind in kinds for name in kind.get("properties", ())))


def _walk(schemas: Iterable[Schema], place: Place, document: Schema) -> list[Schema]:
    """Return what the document says of a place; several schemas where a value may be of kinds."""
    current = list(schemas)
    for step in place:
        current = [below for one in current for below in _below(one, step, document)]
    return current


def _kinds(schema: Schema, document: Schema) -> list[Schema]:
    """Return the schemas of the kinds a value may be of; one where it may be of one only."""
    schema = _resolve(schema, document)
    kinds = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    return [one for kind in kinds for one in _kinds(kind, document)] if kinds else [schema]


def _below(schema: Schema, step: str | int, document: Schema) -> list[Schema]:
    return [below for kind in _kinds(schema, document) for below in _below_kind(kind, step)]


def _below_kind(schema: Schema, step: str | int) -> list[Schema]:
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


def _resolve(schema: Schema, document: Schema) -> Schema:
    """Follow a reference into the document."""
    name = str(schema.get("$ref", ""))
    if not name.startswith(_REF):
        return schema
    found: Schema = document["components"]["schemas"][name.removeprefix(_REF)]
    return found


def _describe(schemas: Sequence[Schema], document: Schema) -> str:
    """Say what a value may be that fits one of `schemas`."""
    kinds = [kind for schema in schemas for kind in _kinds(schema, document)]
    # That a value may be null is not told.
    words = [_one_kind(kind, document) for kind in kinds if kind.get("type") != "null"]
    return ", or ".join(dict.fromkeys(words)) or _left_out(schemas)


def _left_out(schemas: Sequence[Schema]) -> str:
    """Say that there must be nothing, and why where the document tells."""
    reasons = [
        str(schema["description"]).rstrip(".") for schema in schemas if "description" in schema
    ]
    return f"left out ({reasons[0]})" if reasons else "left out"


def _one_kind(schema: Schema, document: Schema) -> str:
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
        case "string":
            return _text(schema)
        case "array":
            return f"a list{_length(schema)}, each {_describe([schema['items']], document)}"
        case "object":
            needed = schema.get("required", ())
            names = [*needed, *(one for one in schema.get("properties", ()) if one not in needed)]
            shown = ", ".join(names[:_MAX_FIELDS]) + (", …" if len(names) > _MAX_FIELDS else "")
            return f"an object with {shown}" if names else "an object"
    return "a value"


def _range(schema: Schema) -> str:
    bounds = (schema.get(name) for name in ("minimum", "maximum", "exclusiveMinimum"))
    low, high, above = (_number(bound) for bound in bounds)
    if above is not None:
        return f" above {above}" + ("" if high is None else f" and at most {high}")
    if low is not None and high is not None:
        return f" from {low} to {high}"
    return f" of at least {low}" if low is not None else ""


def _number(bound: float | None) -> float | None:
    """Return a bound without a point where it needs none; documents write 100.0 for 100."""
    return int(bound) if bound is not None and bound == int(bound) else bound


def _text(schema: Schema) -> str:
    if "pattern" in schema:
        return f"a text that matches {schema['pattern']}"
    return "a text with at least one character" if schema.get("minLength") else "a text"


def _length(schema: Schema) -> str:
    low, high = schema.get("minItems"), schema.get("maxItems")
    if low is not None and high is not None:
        return f" of {low} to {high} items"
    if high is not None:
        return f" of at most {high} items"
    return f" of at least {low}" if low is not None else ""
