"""Composed tool prompts: valid JSON, matching requests, the same for the same seed."""

import json
import re
from collections.abc import Sequence

import numpy as np

from headlong.train.tool_prompts import TOOL_FUNCTIONS, ToolPrompts


def compose_tool_prompts(num_prompts: int, seed: int, code: Sequence[str] = ()) -> list[str]:
    """Many prompts from one seed."""
    prompts, rng = ToolPrompts(code), np.random.default_rng(seed)
    return [prompts.compose(rng) for _ in range(num_prompts)]


def test_the_same_seed_composes_the_same() -> None:
    assert compose_tool_prompts(20, 3) == compose_tool_prompts(20, 3)
    assert compose_tool_prompts(20, 3) != compose_tool_prompts(20, 4)


def test_functions_are_listed_as_json() -> None:
    for text in compose_tool_prompts(200, 1):
        start = re.search(r"\[\s*\{", text)
        assert start is not None, text
        listed, _ = json.JSONDecoder().raw_decode(text, start.start())
        for function in listed:
            parameters = function["parameters"]
            assert set(parameters["required"]) <= set(parameters["properties"])


def test_every_request_names_only_its_own_parameters() -> None:
    for function in TOOL_FUNCTIONS:
        values = {parameter.name: "x" for parameter in function.parameters}
        for request in function.requests:
            assert "{" not in request.format(**values)


def test_code_without_a_doctest_gives_no_function() -> None:
    texts = compose_tool_prompts(300, 1, ['def f(n: int) -> int:\n    """Do it."""'])
    assert not any('"name": "f"' in text for text in texts)


def test_code_with_a_doctest_gives_a_function() -> None:
    text = (
        'def area(side: int) -> int:\n    """Area of a square.\n\n    >>> area(3)\n    9\n    """'
    )
    texts = compose_tool_prompts(300, 1, [text])
    assert any('"name": "area"' in text for text in texts)
