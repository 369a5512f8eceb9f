"""Random JSON schemas of the kinds people send: nested, bounded, with choices and references."""

import random
from typing import Any

NAMES = ("name", "age", "is_ok", "städte", "a b", "items", "unit-price", "x", '"quoted"', "hello")
WORDS = ("red", "green", "hell", "12", "é", "a\nb", "")


def random_schema(rng: random.Random) -> dict[str, Any]:
    """Draw a schema of an object, sometimes with definitions it refers to."""
    schema = _object(rng, depth=3)
    if rng.random() < 0.3:
        schema["$defs"] = {"thing": _schema(rng, depth=1)}
        schema["properties"]["thing"] = {"$ref": "#/$defs/thing"}
        schema["required"] = [*schema["required"], "thing"]
    if rng.random() < 0.2:
        schema |= {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "T"}
    return schema


def _schema(rng: random.Random, depth: int) -> dict[str, Any]:
    kinds = [_string, _integer, _number, _choice, _plain]
    if depth:
        kinds += [_object, _object, _array, _any_of]
    return rng.choice(kinds)(rng, depth - 1)


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(NAMES, rng.randint(0, 4))
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: _schema(rng, depth) for name in names},
        "required": [name for name in names if rng.random() < 0.7],
    }
    if rng.random() < 0.8:
        schema["additionalProperties"] = False
    elif rng.random() < 0.5:
        schema["additionalProperties"] = {"type": "boolean"}
    return schema


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    fewest = rng.randint(0, 2)
    most = fewest + rng.randint(0, 2)
    schema = {"type": "array", "items": _schema(rng, depth), "minItems": fewest, "maxItems": most}
    if rng.random() < 0.2:
        schema["prefixItems"] = [_plain(rng, 0)]
    return schema


def _any_of(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [_schema(rng, depth) for _ in range(rng.randint(1, 3))]}


def _string(rng: random.Random, depth: int) -> dict[str, Any]:
    bounds: list[dict[str, Any]] = [
        {"maxLength": rng.randint(0, 12)},
        {"minLength": 2, "maxLength": rng.randint(2, 12)},
        {
            "pattern": rng.choice([r"^[A-Z]{2}-\d{1,4}$", r"^(he|ll)+o$", r"^\w{1,8}$"]),
            "maxLength": 9,
        },
        {"format": rng.choice(["date", "uuid", "ipv4"])},
    ]
    return {"type": "string", **rng.choice(bounds)}


def _integer(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.randint(-1000, 1000)
    schema: dict[str, Any] = {
        "type": "integer",
        "minimum": low,
        "maximum": low + rng.randint(0, 999),
    }
    if rng.random() < 0.2:
        schema = {"type": "integer", "multipleOf": rng.randint(2, 9), "minimum": 0, "maximum": 5000}
    return schema


def _number(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.randint(-100, 100)
    return {"type": "number", "exclusiveMinimum": low, "maximum": low + rng.randint(1, 50)}


def _choice(rng: random.Random, depth: int) -> dict[str, Any]:
    values = [*WORDS, 3, -2.5, None, True, {"a": 1}, [1, "b"]]
    if rng.random() < 0.3:
        return {"const": rng.choice(values)}
    return {"enum": rng.sample(values, rng.randint(1, 4))}


def _plain(rng: random.Random, depth: int) -> dict[str, Any]:
    return rng.choice([{"type": "boolean"}, {"type": "null"}, {"type": ["boolean", "null"]}])
