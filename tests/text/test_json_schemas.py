"""Schemas are written in our style, bounded, and searched for the place an error means."""

import json
from typing import Any

import pytest

from headlong.errors import RequestError
from headlong.text.json_schemas import ANY_OBJECT, MAX_FIXED, Owner, find_fault, written_schema

OWNER = Owner("It", "its.field")


def test_style_of_writing_goes_with_the_schema() -> None:
    style = json.loads(written_schema({"type": "string"}, OWNER))["x-guidance"]
    assert style == {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    assert "whitespace_pattern" in json.loads(written_schema(ANY_OBJECT, OWNER))["x-guidance"]


def test_style_of_the_caller_is_not_used() -> None:
    """Guards silence: `lenient` would let keywords drop out without a word."""
    written = json.loads(written_schema({"x-guidance": {"lenient": True}}, OWNER))
    assert "lenient" not in written["x-guidance"]


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"const": "x" * MAX_FIXED}, "/const"),
        ({"enum": [1, ["x" * MAX_FIXED]]}, "/enum"),
        ({"properties": {"x" * (MAX_FIXED + 1): {}}}, "/properties"),
        ({"items": {"pattern": "(ab{100}){50}"}}, "/items/pattern"),
        ({"patternProperties": {"a{4001}": {}}}, "/patternProperties"),
    ],
)
def test_long_prescribed_texts_are_refused(schema: dict[str, Any], place: str) -> None:
    with pytest.raises(RequestError, match=rf"It prescribes \d+ characters at {place}"):
        written_schema(schema, OWNER)


@pytest.mark.parametrize(
    "schema",
    [
        {"description": "x" * 9000, "default": "y" * 9000},
        {"pattern": r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"},
        {"pattern": r"^(a{0,1000}b){1,50}\{5000\}[{5000}]$"},
        {"const": "x" * (MAX_FIXED - 2)},
    ],
)
def test_ordinary_texts_pass(schema: dict[str, Any]) -> None:
    assert json.loads(written_schema(schema, OWNER)).items() > schema.items()


def test_fault_is_a_keyword_and_not_a_name() -> None:
    schema = {"properties": {"not": {"type": "object", "not": {}}}}
    assert find_fault(schema, 'Unimplemented keys: ["not"]') == "/properties/not/not"
    assert find_fault({"const": {"not": 1}}, 'Unimplemented keys: ["not"]') is None


def test_fault_with_the_named_value_is_the_one() -> None:
    schema = {"anyOf": [{"format": "date"}, {"format": "colour"}]}
    assert find_fault(schema, "Unknown format: colour") == "/anyOf/1/format"
