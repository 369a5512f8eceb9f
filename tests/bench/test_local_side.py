"""The loaded model answers as a side, and its head has a name."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench_parts import make_prompt, make_question
from faulty_heads import copy_shipped
from headlong.bench.local_side import LocalSide, model_input, name_head, split_by_context
from headlong.errors import RequestError
from headlong.llm import LLM


def test_modes_say_the_same_and_count_the_same(tiny_llm: LLM) -> None:
    question = make_question(make_prompt(1), temperature=0.8)
    plain = LocalSide(tiny_llm, "off").answer(question)
    drafted = LocalSide(tiny_llm, 3).answer(question)
    assert plain.token_ids == drafted.token_ids
    assert plain.text == drafted.text
    assert plain.num_tokens == drafted.num_tokens == len(plain.token_ids or ())
    assert 0 < plain.ttft_s <= plain.total_s
    assert plain.acceptance is not None
    assert plain.acceptance.num_drafted == 0


def test_no_answer_profits_from_an_earlier_one(tiny_llm: LLM) -> None:
    """The engine keeps prefixes; a side that comes second must not be spared its prompt."""
    question = make_question(make_prompt(1))
    side = LocalSide(tiny_llm, "off")
    for _ in range(2):
        before = tiny_llm.engine.snapshot().prefix_hit_tokens
        side.answer(question)
        assert tiny_llm.engine.snapshot().prefix_hit_tokens == before


def test_names_are_as_typed_and_labels_for_people(tiny_llm: LLM) -> None:
    sides = [LocalSide(tiny_llm, mode) for mode in ("off", "auto", 4)]
    assert [side.name for side in sides] == ["off", "auto", "4"]
    assert [side.label for side in sides] == ["MTP off", "MTP auto", "MTP K=4"]


def test_prompts_go_through_the_template_unless_raw(tiny_llm: LLM) -> None:
    prompt = make_prompt(1)
    assert model_input(tiny_llm, prompt, is_raw=False) == prompt.messages
    assert model_input(tiny_llm, prompt, is_raw=True) == "code prompt 1"


def test_refused_prompt_is_named(tiny_llm: LLM) -> None:
    odd = replace(make_prompt(1), messages=({"role": "wizard", "content": "hi"},), text=None)
    with pytest.raises(RequestError, match="code:1: Message 0 has the role 'wizard'"):
        split_by_context(tiny_llm, [odd], is_raw=False)


@pytest.mark.parametrize("is_raw", [True, False])
def test_prompts_over_the_context_are_named(tiny_llm: LLM, is_raw: bool) -> None:
    limit = tiny_llm.backbone.config.context_length
    long = make_prompt(2, task="x" * limit)
    fitting, skipped = split_by_context(tiny_llm, [make_prompt(1), long], is_raw=is_raw)
    assert [prompt.name for prompt in fitting] == ["code:1"]
    assert len(skipped) == 1
    assert f"the model's context holds {limit:,}." in skipped[0]


def test_name_follows_the_content_not_the_place(default_model_path: Path, tmp_path: Path) -> None:
    """Results of an old and a new head under one name would else be put together."""
    llm = LLM.load(default_model_path)
    shipped = name_head(llm, None)
    assert shipped.startswith("smollm2-135m-instruct (")
    folder = copy_shipped(tmp_path / "smollm2-135m-instruct")
    assert name_head(llm, folder) == name_head(llm, folder / "model.safetensors") == shipped
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rope_theta": 1.0}))
    assert name_head(llm, folder) != shipped


def test_model_without_a_head_has_none(tiny_llm: LLM) -> None:
    assert name_head(tiny_llm, None) == "none"
