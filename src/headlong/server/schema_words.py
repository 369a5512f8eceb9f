"""JSON schemas in words: "a number from 0 to 100", "one of "auto", "off", or a list of texts".

In:  schemas out of an OpenAPI document. Out: what fits after "It must be".
Covers what our own document uses, nothing more.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

Schema: TypeAlias = Mapping[str, Any]

_REF = "#/components/schemas/"
_MAX_FIELDS = 12


def resolve(schema: Schema, document: Schema) -> Schema:
    """Follow a reference into the document."""
    name = str(schema.get("$ref", ""))
    if not name.startswith(_REF):
        return schema
    found: Schema = document["components"]["schemas"][name.removeprefix(_REF)]
    return found


def describe(schemas: Sequence[Schema], document: Schema) -> str:
    """Say what a value may be that fits one of `schemas`."""
    kinds: list[str] = []
    for schema in schemas:
        kinds += [kind for kind in _kinds(schema, document) if kind not in kinds]
    return ", or ".join(kinds) or _left_out(schemas)


def _left_out(schemas: Sequence[Schema]) -> str:
    """Say that there must be nothing, and why where the document tells."""
    reasons = [
        str(schema["description"]).rstrip(".") for schema in schemas if "description" in schema
    ]
    return f"left out ({reasons[0]})" if reasons else "left out"


def _kinds(schema: Schema, document: Schema) -> list[str]:
    """List what a schema allows; that a value may be null is not worth telling."""
    schema = resolve(schema, document)
    below = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    if below:
        return [kind for one in below for kind in _kinds(one, document)]
    if schema.get("type") == "null":
        return []
    return [_one_kind(schema, document)]


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
            return f"a list{_length(schema)}, each {describe([schema['items']], document)}"
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
