"""Structured output, whole: what was asked for comes out, the same with MTP and without."""

import json
import random
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it has no types
import pytest
from jsonschema import Draft202012Validator

from headlong import LLM
from headlong.config import MtpMode
from headlong.errors import RequestError
from headlong.generation import Completion, Generation
from random_schemas import random_schema
from talking_model import write_talking_model

ROOT = Path(__file__).parent.parent

PERSON = {
    "type": "object",
    "properties": {
        "name_of_the_person": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "hobbies": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3},
    },
    "required": ["name_of_the_person", "age", "hobbies"],
    "additionalProperties": False,
}
PLACE = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Get the weather.", "parameters": PLACE},
}
NOW = {"type": "function", "function": {"name": "now", "description": "Get the time of day."}}
PROMPTS = ("hello", "Describe a person as JSON.", "{", "What is 12 + 12?", "é\n\nhell")


@pytest.fixture(scope="module")
def talking_llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    """A tiny random model that speaks bytes and has room for long answers."""
    path = tmp_path_factory.mktemp("talking") / "talking.gguf"
    return LLM.load(write_talking_model(path, context_length=2048), backend="numpy")


def as_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Write a schema as a `response_format`."""
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}


def ask(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


def answer_alike(llm: LLM, prompt: str, mtp: MtpMode, **options: Any) -> Completion:
    """Answer with MTP and without; return the answer if both are the same."""
    options = {"seed": 0, **options}
    out, plain = (llm.generate(ask(prompt), **{"mtp": how, **options}) for how in (mtp, "off"))
    assert out.token_ids == plain.token_ids
    assert (out.text, out.tool_calls) == (plain.text, plain.tool_calls)
    assert plain.stats.num_drafted == 0
    return out


@dataclass(frozen=True)
class Pair:
    """An answer in the making with MTP, and the same one without."""

    schema: Mapping[str, Any]
    drafted: Generation
    plain: Generation


def begin_pair(llm: LLM, seed: int, mtp: MtpMode, max_tokens: int) -> Pair:
    """Let a model begin to follow a random schema, twice."""
    rng = random.Random(seed)
    schema, prompt = random_schema(rng), ask(rng.choice(PROMPTS))
    options: dict[str, Any] = {
        "response_format": as_format(schema),
        "temperature": rng.choice([0.0, 0.7, 1.0]),
        "seed": seed,
        "max_tokens": max_tokens,
    }
    drafted = llm.stream(prompt, mtp=mtp, **options)
    return Pair(schema, drafted, llm.stream(prompt, mtp="off", **options))


def count_followed(llm: LLM, seeds: Sequence[int], mtp: MtpMode, max_tokens: int) -> int:
    """Follow random schemas, all in one batch; return how many answers came to their end."""
    num_finished = 0
    for pair in [begin_pair(llm, seed, mtp, max_tokens) for seed in seeds]:
        out = pair.drafted.complete()
        assert out.token_ids == pair.plain.complete().token_ids, pair.schema
        if out.finish_reason == "stop":
            num_finished += 1
            jsonschema.validate(json.loads(out.text), pair.schema, Draft202012Validator)
    return num_finished


def test_random_schemas_are_followed(talking_llm: LLM) -> None:
    num_finished = count_followed(talking_llm, range(100), 4, max_tokens=250)
    num_finished += count_followed(talking_llm, range(100, 200), "auto", max_tokens=250)
    assert num_finished > 180


def test_default_model_follows_random_schemas(default_llm: LLM) -> None:
    assert count_followed(default_llm, range(10), "auto", max_tokens=64) >= 5


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_forced_text_is_drafted_for_free(default_llm: LLM, temperature: float) -> None:
    out = answer_alike(
        default_llm,
        "Describe a person who lives in Rome.",
        3,
        response_format=as_format(PERSON),
        temperature=temperature,
        seed=3,
    )
    jsonschema.validate(json.loads(out.text), PERSON)
    forced = out.stats.by_drafter["grammar"]
    assert forced.num_accepted == forced.num_drafted >= 12
    assert out.stats.acceptance_length > 2


def test_any_object_is_json(default_llm: LLM) -> None:
    prompt = "Give me a JSON object with the keys name, age and city."
    out = answer_alike(default_llm, prompt, 3, response_format={"type": "json_object"})
    assert {"name", "age", "city"} <= json.loads(out.text).keys()


def test_max_tokens_cuts_what_has_no_end(talking_llm: LLM) -> None:
    endless = {"type": "array", "items": {"type": "null"}, "minItems": 10_000}
    options = {"response_format": as_format(endless), "max_tokens": 30}
    out = answer_alike(talking_llm, "hello", 4, **options)
    assert out.finish_reason == "length"
    assert len(out.token_ids) == 30
    assert out.text.startswith("[null, null, ")


def test_logprobs_are_those_of_the_free_model(talking_llm: LLM) -> None:
    """A grammar changes what is picked, not what the model believes."""
    options = {"response_format": as_format(PERSON), "logprobs": 2, "max_tokens": 40}
    out = answer_alike(talking_llm, "hello", 4, **options)
    assert out.logprobs is not None
    eos_id = min(talking_llm.tokenizer.eos_ids)
    free = talking_llm.generate(
        [*talking_llm.encode(ask("hello")), *out.token_ids[:20], eos_id][:-1],
        logprobs=2,
        max_tokens=1,
    )
    assert free.logprobs is not None
    assert out.logprobs[20].top == pytest.approx(free.logprobs[0].top)


@pytest.mark.parametrize("mtp", [4, "auto"])
def test_required_tool_is_called_with_valid_arguments(default_llm: LLM, mtp: MtpMode) -> None:
    out = answer_alike(
        default_llm,
        "What is the weather in Paris in celsius?",
        mtp,
        tools=[WEATHER],
        tool_choice="required",
        parallel_tool_calls=False,
        seed=1,
    )
    assert out.text == ""
    (call,) = out.tool_calls
    assert call.name == "get_weather"
    jsonschema.validate(json.loads(call.arguments), PLACE)
    assert re.fullmatch(r"call_1_\d+_0", call.id)


def test_named_tool_is_called_from_forced_text_alone(default_llm: LLM) -> None:
    choice = {"type": "function", "function": {"name": "now"}}
    out = answer_alike(default_llm, "Hi!", 4, tools=[WEATHER, NOW], tool_choice=choice)
    assert [(call.name, call.arguments) for call in out.tool_calls] == [("now", "{}")]
    assert out.stats.rounds <= 4
    assert len(out.token_ids) > 20


def test_free_choice_leaves_free_text(default_llm: LLM) -> None:
    out = answer_alike(default_llm, "Say hello.", 4, tools=[WEATHER], max_tokens=20)
    assert out.text
    assert out.tool_calls == ()


def test_begun_call_is_carried_through(default_llm: LLM) -> None:
    """With a free choice the grammar wakes up at the opening tag."""
    opening = dict.fromkeys(default_llm.tokenizer.encode("<tool_call>"), 30.0)
    options = {"tools": [WEATHER, NOW], "logit_bias": opening, "max_tokens": 60}
    out = answer_alike(default_llm, "What time is it?", 4, **options)
    assert out.tool_calls
    assert out.tool_calls[0].name in ("get_weather", "now")


def test_conversation_goes_on_after_a_call(default_llm: LLM) -> None:
    """What the answer of one turn was is what the next turn's prompt says, calls included."""
    choice = {"type": "function", "function": {"name": "now"}}
    first = default_llm.generate(ask("What time is it?"), tools=[NOW], tool_choice=choice)
    call = first.tool_calls[0]
    called = {"id": call.id, "type": "function"}
    called_function = {"name": call.name, "arguments": call.arguments}
    messages: list[Mapping[str, Any]] = [
        *ask("What time is it?"),
        {"role": "assistant", "tool_calls": [{**called, "function": called_function}]},
        {"role": "tool", "tool_call_id": call.id, "content": "It is 12:30."},
    ]
    prompt = default_llm.tokenizer.decode(default_llm.encode(messages, [NOW]), skip_special=False)
    assert "<tool_call>\n" + '{"name": "now", "arguments": {}}' + "\n</tool_call>" in prompt
    assert "<tool_response>\nIt is 12:30.\n</tool_response>" in prompt
    assert "12" in default_llm.generate(messages, tools=[NOW], max_tokens=30).text


def test_tools_that_may_not_be_called_are_not_in_the_prompt(default_llm: LLM) -> None:
    out = default_llm.generate(ask("Hi!"), tools=[WEATHER], tool_choice="none", max_tokens=4)
    assert out.num_prompt_tokens == len(default_llm.encode(ask("Hi!")))


def test_schema_it_cannot_follow_is_refused_before_anything_runs(talking_llm: LLM) -> None:
    with pytest.raises(RequestError, match="at /not: Unimplemented"):
        talking_llm.generate("x", response_format=as_format({"not": {}}))
    assert talking_llm.engine.num_running == 0


def test_examples_of_the_page_run(default_model_path: Path) -> None:
    """Every Python block of docs/structured-output.md runs as written, in one go."""
    page = (ROOT / "docs/structured-output.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert blocks
    code = "\n".join(block for block in blocks if "openai" not in block)
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300, cwd=ROOT)
