"""Tool prompts: composed requests to call one of a few functions.

In:  random numbers; coding prompts, whose signatures and doctests give further functions.
Out: texts with a JSON list of functions and a request, in the formats of agents.
Prompt files have few of these, and a head drafts JSON well only if it was trained on the backbone's
JSON. All texts were written for this project and have its licence.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headlong.train.questions import WORDINGS

COMPOSED_TOOLS = "composed_tools"

_SIGNATURE = re.compile(r"^def (\w+)\((.*?)\)\s*(?:->[^:]*)?:", re.DOTALL | re.MULTILINE)
_PARAMETER = re.compile(r"(\w+)\s*:\s*(\w+)")
_DOCTEST = re.compile(r"^\s*>>> (\w+)\((.{1,120})\)\s*$", re.MULTILINE)
_JSON_TYPES = {"int": "integer", "float": "float", "str": "string", "bool": "boolean"}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of a function."""

    name: str
    type: str
    description: str
    values: Sequence[str]
    is_required: bool = True


@dataclass(frozen=True, slots=True)
class Function:
    """A function to call and ways to ask for it; requests name parameters in braces."""

    name: str
    description: str
    parameters: Sequence[Parameter]
    requests: Sequence[str]


def _read_tool_functions() -> list[Function]:
    records = json.loads(Path(__file__).with_name("tool_functions.json").read_text("utf-8"))
    return [
        Function(**record | {"parameters": [Parameter(**one) for one in record["parameters"]]})
        for record in records
    ]


TOOL_FUNCTIONS = _read_tool_functions()
"""Functions written by hand, in `tool_functions.json`."""


class ToolPrompts:
    """Composes prompts of one to four functions each, some of them from the prompts in `code`."""

    def __init__(self, code: Sequence[str] = ()) -> None:
        found = [_read_function(text) for text in code]
        self._functions = [*TOOL_FUNCTIONS, *(function for function in found if function)]

    def compose(self, rng: np.random.Generator) -> str:
        """Return a prompt that contains the functions."""
        schemas, request = self.draw(rng)
        indent = 2 if rng.random() < 0.15 else None
        frames: list[str] = WORDINGS["tool_frames"]
        frame = frames[int(rng.integers(len(frames)))] if rng.random() < 0.6 else frames[0]
        return frame.format(tools=json.dumps(schemas, indent=indent), request=request)

    def draw(self, rng: np.random.Generator) -> tuple[list[dict[str, Any]], str]:
        """Draw schemas and a request: half the time for a hand-written function, else for any."""
        functions = self._functions
        wanted = functions[
            int(rng.integers(len(TOOL_FUNCTIONS if rng.random() < 0.5 else functions)))
        ]
        chosen = rng.integers(len(functions), size=int(rng.integers(4)))
        others = [functions[int(i)] for i in chosen]
        listed = [wanted, *(other for other in others if other.name != wanted.name)]
        type_name = ("dict", "object")[int(rng.integers(2))]
        schemas = [_schema(listed[int(i)], type_name) for i in rng.permutation(len(listed))]
        request = wanted.requests[int(rng.integers(len(wanted.requests)))].format(
            **{p.name: p.values[int(rng.integers(len(p.values)))] for p in wanted.parameters}
        )
        return schemas, request


def _schema(function: Function, type_name: str) -> dict[str, Any]:
    properties = {
        p.name: {"type": p.type, "description": p.description} for p in function.parameters
    }
    required = [p.name for p in function.parameters if p.is_required]
    parameters = {"type": type_name, "properties": properties, "required": required}
    return {"name": function.name, "description": function.description, "parameters": parameters}


def _read_function(text: str) -> Function | None:
    """Convert a typed Python function with a doctest to a tool function."""
    signature, doctest = _SIGNATURE.search(text), _DOCTEST.search(text)
    if signature is None or doctest is None or doctest[1] != signature[1]:
        return None
    typed = _PARAMETER.findall(signature[2])
    _, _, after = text[signature.end() :].partition('"""')
    lines = [line.strip() for line in after.splitlines() if line.strip()]
    if not typed or not lines or lines[0].startswith(">>>") or "{" in doctest[2] + lines[0]:
        return None
    parameters = [
        Parameter(
            name, _JSON_TYPES.get(type_name, "array"), f"The {name.replace('_', ' ')}.", ("",)
        )
        for name, type_name in typed
    ]
    requests = (f"{lines[0]} Do it for {doctest[2]}.", f"Call {signature[1]} with {doctest[2]}.")
    return Function(signature[1], lines[0], parameters, requests)
