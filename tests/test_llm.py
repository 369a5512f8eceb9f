"""The Python front door: what goes in, what comes out, what is refused."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headlong
from headlong import LLM, HeadlongError
from headlong.config import MODEL_OPTIONS
from headlong.errors import RequestError
from headlong.heads.head_files import save_head
from headlong.heads.shipped_heads import find_shipped_head
from headlong.llm import GenerateOptions, LoadOptions
from random_heads import random_head

MESSAGES = [{"role": "user", "content": "hello"}]


def test_public_names_are_these() -> None:
    assert sorted(headlong.__all__) == [
        "HeadlongError",
        "LLM",
        "__version__",
        "benchmark_inference",
        "generate",
        "load",
        "make_logits_processors",
        "make_prompt_cache",
        "make_sampler",
        "stream_generate",
    ]
    for name in headlong.__all__:
        assert getattr(headlong, name) is not None


def test_keywords_of_load_are_the_declared_options() -> None:
    """Type checkers need the names once more; no option may be missing in either place."""
    assert {"model", *LoadOptions.__annotations__} == {*MODEL_OPTIONS, "limits", "progress"}


def test_completion_says_all_that_was_promised(tiny_llm: LLM) -> None:
    out = tiny_llm.generate(
        MESSAGES, mtp="auto", max_tokens=16, temperature=0.7, seed=1, logprobs=2
    )
    assert isinstance(out.text, str)
    assert len(out.token_ids) <= 16
    assert out.finish_reason in ("stop", "length")
    assert out.logprobs is not None
    stats, timings = out.stats, out.timings
    assert stats.rounds >= 1
    assert stats.num_drafted >= stats.num_accepted >= 0
    assert stats.acceptance_length == pytest.approx(1 + sum(stats.acceptance_at_depth))
    assert set(stats.by_drafter) <= {"ngram"}
    assert timings.prefill_s > 0
    assert timings.prefill_head_s >= 0
    assert timings.decode_s >= timings.draft_s + timings.verify_s - 1e-9
    assert timings.tokens_per_second > 0
    assert json.dumps(stats.to_dict() | timings.to_dict())


def test_string_is_taken_as_it_stands(tiny_llm: LLM) -> None:
    ids = tiny_llm.tokenizer.encode("hello")
    assert tiny_llm.encode("hello") == tuple(ids)
    by_text, by_ids = (tiny_llm.generate(p, max_tokens=8, seed=0) for p in ("hello", ids))
    assert by_text.token_ids == by_ids.token_ids


def test_messages_go_through_the_template(tiny_llm: LLM) -> None:
    written = tiny_llm.tokenizer.decode(tiny_llm.encode(MESSAGES), skip_special=False)
    assert written == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


def test_drawn_seed_is_reported_and_repeats_the_text(tiny_llm: LLM) -> None:
    first = tiny_llm.generate("hello", max_tokens=20, temperature=1.0)
    again = tiny_llm.generate("hello", max_tokens=20, temperature=1.0, seed=first.seed)
    assert again.token_ids == first.token_ids
    others = {tiny_llm.generate("hello", max_tokens=20, temperature=1.0).text for _ in range(4)}
    assert len(others) > 1, "without a seed, sampling draws a new one"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": -1}, "temperature is -1"),
        ({"temperature": 2.5}, "temperature is 2.5. It must be from 0 to 2"),
        ({"top_p": -0.1}, "top_p is -0.1"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"mtp": "fast"}, "mtp is 'fast'"),
        ({"mtp": 0}, "mtp is 0"),
        ({"mtp": 99}, "mtp is 99"),
        ({"mtp": True}, "mtp is True"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["a"] * 17}, "17"),
        ({"logprobs": 21}, "logprobs is 21"),
        ({"seed": -1}, "seed is -1"),
        ({"logit_bias": {1: 200.0}}, "logit_bias"),
        ({"temprature": 1.0}, "Unknown option 'temprature'"),
    ],
)
def test_bad_options_are_refused_with_the_value(
    tiny_llm: LLM, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(RequestError, match=words):
        tiny_llm.generate("hello", **options)
    assert tiny_llm.engine.num_running == 0


@pytest.mark.parametrize("prompt", ["", [], [None], [[1, 2]]])
def test_impossible_prompts_are_refused(tiny_llm: LLM, prompt: Any) -> None:
    with pytest.raises(HeadlongError):
        tiny_llm.generate(prompt)


@pytest.mark.parametrize("drafter", ["auto", "ngram", "none"])
def test_drafters_without_a_head_load(tiny_model_path: Path, drafter: Any) -> None:
    llm = LLM.load(tiny_model_path, drafter=drafter, backend="numpy")
    assert llm.head is None
    assert llm.generate("hello", max_tokens=4).text


def test_given_head_is_used(tiny_llm: LLM, tiny_model_path: Path, tmp_path: Path) -> None:
    save_head(tmp_path / "head", random_head("eagle3", tiny_llm.backbone.config))
    llm = LLM.load(tiny_model_path, head=tmp_path / "head", backend="numpy")
    assert llm.head is not None
    assert llm.head.kind == "eagle3"
    out = llm.generate("hello", mtp=3, max_tokens=12)
    assert out.stats.by_drafter["head"].num_drafted > 0
    assert out.timings.prefill_head_s > 0
    assert out.token_ids == tiny_llm.generate("hello", mtp="off", max_tokens=12).token_ids


def test_second_model_drafts_for_the_first(tiny_model_path: Path) -> None:
    llm = LLM.load(
        tiny_model_path, drafter="draft-model", draft_model=tiny_model_path, backend="numpy"
    )
    out = llm.generate("hello", mtp=3, max_tokens=13)
    assert out.stats.acceptance_rate == 1.0, "a model agrees with itself"
    assert set(out.stats.by_drafter) == {"draft-model"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"drafter": "head"}, "without a head"),
        ({"drafter": "draft-model"}, "no draft model"),
        ({"drafter": "magic"}, "drafter is 'magic'"),
        ({"backend": "abacus"}, "abacus"),
        ({"haed": "x"}, "Unknown option 'haed'"),
        ({"head": "no/such/folder"}, "no/such/folder"),
    ],
)
def test_bad_set_ups_are_refused(
    tiny_model_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(HeadlongError, match=words):
        LLM.load(tiny_model_path, **options)


def test_default_model_answers(default_llm: LLM) -> None:
    out = default_llm.generate("The capital of France is", max_tokens=4)
    assert "Paris" in out.text
    assert default_llm.report.left_over == ()


@pytest.mark.parametrize(
    "options",
    [
        {"seed": "1"},
        {"seed": 1.5},
        {"temperature": "0.7"},
        {"max_tokens": "5"},
        {"max_tokens": 2.5},
        {"top_k": 5.0},
        {"logprobs": False},
        {"logprobs": 2.0},
        {"stop": [1]},
        {"stop": 1},
        {"logit_bias": {"5": 1.0}},
        {"logit_bias": [1]},
        {"ignore_eos": "no"},
        {"repetition_penalty": 1e-38},
        {"tools": [{"type": "function"}]},
    ],
)
def test_values_of_the_wrong_kind_are_refused(tiny_llm: LLM, options: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        tiny_llm.generate("hello", **options)


def test_numbers_out_of_arrays_are_taken(tiny_llm: LLM) -> None:
    ids: Any = np.array(tiny_llm.encode("hello"))
    seed: Any = np.int64(3)
    temperature: Any = np.float32(0.5)
    from_arrays = tiny_llm.generate(ids, max_tokens=8, temperature=temperature, seed=seed)
    plain = tiny_llm.generate(ids.tolist(), max_tokens=8, temperature=0.5, seed=3)
    assert from_arrays.token_ids == plain.token_ids


@pytest.mark.parametrize("prompt", [[True, False], [1, "a"], None, 5])
def test_prompts_of_the_wrong_kind_name_the_item(tiny_llm: LLM, prompt: Any) -> None:
    with pytest.raises(RequestError, match="neither a message nor a token id"):
        tiny_llm.generate(prompt)


def test_named_draft_model_is_used(tiny_model_path: Path) -> None:
    llm = LLM.load(tiny_model_path, draft_model=tiny_model_path, backend="numpy")
    assert llm.drafter is not None
    assert llm.drafter.name == "draft-model"


def test_parts_that_would_lie_unused_are_refused(tiny_model_path: Path) -> None:
    for options in ({"head": "x", "drafter": "ngram"}, {"draft_model": "x", "drafter": "head"}):
        with pytest.raises(RequestError, match="does not use it"):
            LLM.load(tiny_model_path, **options)  # type: ignore[arg-type]


def test_shipped_head_drafts_for_the_default_model(default_llm: LLM) -> None:
    assert default_llm.head is not None
    assert default_llm.head.kind == "eagle3"
    out = default_llm.generate("The capital of France is", mtp=4, max_tokens=32)
    assert out.stats.by_drafter["head"].num_accepted > 0


def test_fine_tuned_relatives_do_not_get_the_shipped_head(tiny_llm: LLM) -> None:
    assert find_shipped_head(tiny_llm.backbone) is None


def test_fallback_to_numpy_says_why(tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "headlong.ops.native.ops", None)
    notes = LLM.load(tiny_model_path).notes
    assert len(notes) == 1
    assert "headlong.ops.native.ops" in notes[0]
    assert "pip install" in notes[0]
    assert LLM.load(tiny_model_path, backend="numpy").notes == ()


def test_same_weights_can_be_drafted_for_otherwise(tiny_model_path: Path) -> None:
    """An engine of its own, so that nothing learned or kept is mixed up."""
    plain = LLM.load(tiny_model_path, backend="numpy", drafter="none")
    drafted = plain.with_drafter(drafter="ngram")
    assert drafted.backbone is plain.backbone
    assert drafted.engine is not plain.engine
    assert drafted.drafter is not None
    assert plain.drafter is None
    options: GenerateOptions = {"max_tokens": 12, "ignore_eos": True, "temperature": 0.9, "seed": 3}
    assert drafted.generate("ab ab", **options).token_ids == (
        plain.generate("ab ab", **options).token_ids
    )
    with pytest.raises(RequestError, match="Unknown option 'quant'"):
        plain.with_drafter(quant="q4")  # type: ignore[call-arg] # the point of the test
