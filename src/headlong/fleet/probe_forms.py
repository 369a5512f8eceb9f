"""What the probe asks of answers in a form: JSON and grammars hold while drafts are checked.

In:  the two sides. Out: one judgement each. Asked greedily and sampled, since engines accept drafts
of the two in other ways.
"""

import json
import re
from collections.abc import Callable, Mapping

from headlong.config import SamplingParams, StopParams
from headlong.decode.request import Request
from headlong.fleet.probe_sides import Side, together
from headlong.fleet.probe_subject import Examined, blame
from headlong.fleet.verdict import Aspect, Judgement
from headlong.text.output_constraint import read_constraint

_SIZES = (1, 2, 3)
_COLOURS = ("red", "green", "blue")
_SCHEMA = {
    "type": "object",
    "properties": {
        "colour": {"enum": list(_COLOURS)},
        "sizes": {
            "type": "array",
            "items": {"enum": list(_SIZES)},
            "minItems": 2,
            "maxItems": 4,
        },
        "ready": {"type": "boolean"},
    },
    "required": ["colour", "sizes", "ready"],
    "additionalProperties": False,
}
"""Short whatever the model does, with parts that are forced and parts that are free."""

_PATTERN = r"(red|green|blue)-[0-9]{3}-[a-f]{2,6}"
_MAX_TOKENS = 120
_TEMPERATURES = (0.0, 1.0, 1.0)


async def check_json(examined: Examined) -> Judgement:
    """Judge whether answers follow a JSON schema."""
    form = {"type": "json_schema", "json_schema": {"name": "part", "schema": _SCHEMA}}
    return await _check_form(examined, Aspect.JSON, form, _is_part)


async def check_grammar(examined: Examined) -> Judgement:
    """Judge whether answers follow a pattern, which travels as a grammar."""
    form = {"type": "regex", "pattern": _PATTERN}
    fits = re.compile(_PATTERN).fullmatch
    return await _check_form(examined, Aspect.GRAMMAR, form, lambda text: fits(text) is not None)


async def _check_form(
    examined: Examined, aspect: Aspect, form: Mapping[str, object], fits: Callable[[str], bool]
) -> Judgement:
    tokenizer = examined.tokenizer
    grammar = read_constraint({"response_format": form}).make_grammar(tokenizer)
    requests = [
        Request(
            question.prompt_ids,
            SamplingParams(temperature=temperature, seed=seed),
            StopParams(max_tokens=_MAX_TOKENS),
            eos_ids=tokenizer.eos_ids,
            grammar=grammar,
        )
        for question in examined.questions[:2]
        for seed, temperature in enumerate(_TEMPERATURES)
    ]

    async def find_problem(side: Side) -> str | None:
        answers = await together(side.ask(request) for request in requests)
        for request, answer in zip(requests, answers, strict=True):
            text = tokenizer.decode(answer.token_ids)
            if not fits(text):
                return f"At temperature {request.sampling.temperature:g} it wrote {text[:80]!r}."
        return None

    return await blame(examined, aspect, f"{len(requests)} answers fit.", find_problem)


def _is_part(text: str) -> bool:
    """Tell whether a text is JSON as `_SCHEMA` wants it."""
    try:
        part = json.loads(text)
    except ValueError:
        return False
    return (
        isinstance(part, dict)
        and sorted(part) == ["colour", "ready", "sizes"]
        and part["colour"] in _COLOURS
        and isinstance(part["ready"], bool)
        and isinstance(part["sizes"], list)
        and 2 <= len(part["sizes"]) <= 4
        and all(size in _SIZES for size in part["sizes"])
    )
