"""Reasoning through the Python API: told from the answer, switched, the same with MTP."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headlong.config import MtpMode
from headlong.engine.request import FinishReason
from headlong.errors import HeadlongError, RequestError, TextError
from headlong.llm import LLM
from scripted_engine import ScriptedEngine

ASKED = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
WANTED = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}


@pytest.fixture(scope="module")
def llm(thinking_model_path: Path) -> LLM:
    """A tiny model whose template opens the reasoning."""
    return LLM.load(thinking_model_path, backend="numpy")


def says(llm: LLM, text: str) -> LLM:
    """The model, saying just this."""
    return replace(llm, engine=ScriptedEngine(tuple(llm.tokenizer.encode(text, add_special=False))))


def end_id(llm: LLM) -> int:
    (token_id,) = llm.tokenizer.encode("</think>", add_special=False)
    return token_id


def test_reasoning_is_told_from_the_answer(llm: LLM) -> None:
    told = says(llm, "Let me see.\n</think>\n\nYes, hello.").generate(ASKED)
    assert (told.reasoning, told.text) == ("Let me see.", "Yes, hello.")
    assert told.num_reasoning_tokens == len("Let me see.\n") + 1
    chunks = list(says(llm, "Let me see.\n</think>\n\nYes, hello.").stream(ASKED))
    assert "".join(chunk.reasoning for chunk in chunks) == told.reasoning
    assert "".join(chunk.text for chunk in chunks) == told.text
    assert [c.is_reasoning for c in chunks] == [True] * 13 + [False] * (len(chunks) - 13)


def test_stop_strings_in_reasoning_end_nothing(llm: LLM) -> None:
    told = says(llm, "Or no?</think>Yes. no.").generate(ASKED, stop="no")
    assert (told.reasoning, told.text) == ("Or no?", "Yes. ")
    assert told.finish_reason is FinishReason.STOP


def test_answer_cut_in_its_reasoning_has_no_text(llm: LLM) -> None:
    told = llm.generate(ASKED, max_tokens=9, logit_bias={66: 100})
    assert (told.text, told.num_reasoning_tokens) == ("", 9)
    assert (told.reasoning, told.finish_reason) == ("c" * 9, FinishReason.LENGTH)


def test_reasoning_can_be_switched_off(llm: LLM) -> None:
    for options in ({"think": False}, {"chat_template_kwargs": {"enable_thinking": False}}):
        told = llm.generate(ASKED, max_tokens=4, logit_bias={66: 100}, **options)
        assert (told.reasoning, told.text, told.warnings) == ("", "cccc", ())


def test_calls_in_reasoning_are_no_calls(llm: LLM) -> None:
    tool = {"type": "function", "function": {"name": "now"}}
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    told = says(llm, f"{call}?</think>{call}").generate(ASKED, tools=[tool])
    assert told.reasoning == f"{call}?"
    assert [one.name for one in told.tool_calls] == ["now"]


@pytest.mark.parametrize("mtp", ["auto", 1, 4])
@pytest.mark.parametrize("seed", range(4))
def test_json_behind_reasoning_is_the_same_with_mtp(llm: LLM, mtp: MtpMode, seed: int) -> None:
    options: dict[str, Any] = {
        "response_format": WANTED,
        "temperature": 1.5,
        "seed": seed,
        "max_tokens": 120,
        "logit_bias": {end_id(llm): 4.0},
    }
    plain = llm.generate(ASKED, mtp="off", **options)
    drafted = llm.generate(ASKED, mtp=mtp, **options)
    assert drafted.token_ids == plain.token_ids
    assert (drafted.reasoning, drafted.text) == (plain.reasoning, plain.text)
    if plain.finish_reason is FinishReason.STOP:
        assert set(json.loads(plain.text)) == {"a"}
        assert plain.num_reasoning_tokens > 0


def test_earlier_reasoning_reaches_the_template(llm: LLM) -> None:
    said = {"role": "assistant", "content": "Hi.", "reasoning_content": "Greet."}
    written = llm.tokenizer.decode(llm.encode([*ASKED, said, *ASKED]), skip_special=False)
    assert "<think>Greet.</think>Hi." in written


def test_answer_goes_on_from_the_last_message(llm: LLM) -> None:
    begun = [*ASKED, {"role": "assistant", "content": "<think>Greet.</think>The 8"}]
    prompt = llm.tokenizer.decode(
        says(llm, " 9").stream(begun, continue_final_message=True)._stream.request.prompt_ids,
        skip_special=False,
    )
    assert prompt.endswith("<|im_start|>assistant\n<think>Greet.</think>The 8")
    assert says(llm, " 9").generate(begun, continue_final_message=True).text == " 9"
    begun[-1] = {"role": "assistant", "content": "<think>Gre"}
    told = says(llm, "et.</think> Hi").generate(begun, continue_final_message=True)
    assert (told.reasoning, told.text) == ("et.", "Hi")


def test_what_has_no_effect_is_said(llm: LLM, tiny_llm: LLM) -> None:
    told = says(llm, "x").generate(ASKED, chat_template_kwargs={"colour": 1})
    assert told.warnings == ("The model's chat template does not read 'colour'.",)
    told = tiny_llm.generate(ASKED, think=True, max_tokens=1)
    assert "does not reason" in told.warnings[0]


@pytest.mark.parametrize(
    ("prompt", "options", "reason"),
    [
        (ASKED, {"chat_template_kwargs": {"messages": []}}, "names 'messages'"),
        (ASKED, {"chat_template_kwargs": {"bos_token": "x"}}, "names 'bos_token'"),
        (ASKED, {"chat_template_kwargs": [1]}, r"chat_template_kwargs is \[1\]"),
        (ASKED, {"think": "yes"}, "think is 'yes'"),
        (ASKED, {"continue_final_message": True}, "no answer in words"),
        ("hello", {"think": True}, "not a list of messages"),
        ("hello", {"chat_template_kwargs": {"a": 1}}, "not a list of messages"),
    ],
)
def test_impossible_options_are_refused(
    llm: LLM, prompt: Any, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises((TextError, RequestError), match=reason) as caught:
        llm.generate(prompt, **options)
    assert isinstance(caught.value, HeadlongError)
