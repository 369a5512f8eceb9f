"""mlx-lm's interface: its arguments, responses and figures; what cannot be met is refused."""

import inspect
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headlong import (
    LLM,
    generate,
    load,
    make_logits_processors,
    make_prompt_cache,
    make_sampler,
    stream_generate,
)
from headlong.errors import HeadlongError, RequestError
from headlong.mlx_lm.interface import GenerationResponse
from headlong.mlx_lm.tokenizer import MlxTokenizer

Loaded = tuple[LLM, MlxTokenizer]
MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def loaded(tiny_model_path: Path) -> Loaded:
    """The tiny model and its tokenizer."""
    return load(tiny_model_path, backend="numpy")


def test_a_program_for_mlx_lm_runs(loaded: Loaded) -> None:
    """As mlx-lm's own introduction has it."""
    model, tokenizer = loaded
    prompt = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True)
    sampler = make_sampler(temp=0.7, top_p=0.9, min_p=0.01, top_k=20)
    text = generate(model, tokenizer, prompt=prompt, max_tokens=12, sampler=sampler, seed=5)
    expected = model.generate(
        prompt, max_tokens=12, temperature=0.7, top_p=0.9, min_p=0.01, top_k=20, seed=5
    )
    assert text == expected.text
    assert text == generate(model, tokenizer, MESSAGES, max_tokens=12, sampler=sampler, seed=5)
    array = np.array(prompt)
    assert text == generate(model, tokenizer, array, max_tokens=12, sampler=sampler, seed=5)


def test_responses_have_mlx_lm_s_fields(loaded: Loaded) -> None:
    model, tokenizer = loaded
    responses = stream_generate(model, tokenizer, "hello", 12, mtp=3, logprobs=2)
    got = list(responses)
    expected = model.generate("hello", max_tokens=12)
    assert [one.token for one in got] == list(expected.token_ids)
    assert "".join(one.text for one in got) == expected.text
    assert [one.generation_tokens for one in got] == list(range(1, len(got) + 1))
    assert {one.prompt_tokens for one in got} == {expected.num_prompt_tokens}
    assert [one.finish_reason for one in got] == [None] * (len(got) - 1) + ["length"]
    assert sum(one.from_draft for one in got) <= responses.stats.num_accepted
    assert all(one.prompt_tps > 0 for one in got)
    assert got[0].generation_tps == 0, "no time has passed since the first token"
    assert all(0 < one.generation_tps < 1e6 for one in got[1:])
    assert 0.01 < got[-1].peak_memory < 100
    assert got[0].logprobs is not None
    assert got[0].logprobs.token_id == got[0].token


def test_names_of_fields_and_arguments_are_those_of_mlx_lm() -> None:
    theirs: Any = pytest.importorskip("mlx_lm.generate")
    assert list(GenerationResponse.__annotations__) == list(
        theirs.GenerationResponse.__annotations__
    )
    for own, other in ((generate, theirs.generate), (stream_generate, theirs.stream_generate)):
        names = [name for name in inspect.signature(other).parameters if name != "kwargs"]
        mine = [name for name in inspect.signature(own).parameters if name != "options"]
        assert mine == [name for name in names if name != "stream"]


def test_the_text_is_the_same_with_and_without_mtp(loaded: Loaded) -> None:
    model, tokenizer = loaded
    texts = {
        generate(model, tokenizer, "hello", max_tokens=20, temperature=0.8, seed=2, mtp=mtp)
        for mtp in ("off", "auto", 1, 5)
    }
    assert len(texts) == 1


def test_verbose_prints_text_and_figures(
    loaded: Loaded, capsys: pytest.CaptureFixture[str]
) -> None:
    model, tokenizer = loaded
    text = generate(model, tokenizer, "hello", verbose=True, max_tokens=9, mtp=2)
    shown = capsys.readouterr().out
    number = r"\d+\.\d{3}"
    assert re.fullmatch(
        rf"==========\n{re.escape(text)}\n==========\n"
        rf"Prompt: \d+ tokens, {number} tokens-per-sec\n"
        rf"Generation: 9 tokens, {number} tokens-per-sec\n"
        rf"MTP: \d+\.\d\d tokens a round, \d+ of \d+ draft tokens accepted\n"
        rf"Peak memory: {number} GB\n",
        shown,
    )


def test_a_prompt_cache_goes_on_where_it_was(loaded: Loaded) -> None:
    """Prompts hold only what is new; what was there is not run again."""
    model, tokenizer = loaded
    cache = make_prompt_cache(model)
    first, second = [10, 20, 30, 40] * 4, [11, 21]
    responses = list(stream_generate(model, tokenizer, first, 8, prompt_cache=cache))
    so_far = [*first, *(one.token for one in responses)]
    assert cache.token_ids == so_far
    again = stream_generate(model, tokenizer, second, 8, prompt_cache=cache)
    answer = [one.token for one in again]
    assert answer == list(model.generate([*so_far, *second], max_tokens=8).token_ids)
    assert cache.token_ids == [*so_far, *second, *answer]
    assert responses[-1].prompt_tokens == 16
    assert again._chunks._stream.report().num_cached_tokens >= len(first)


def test_another_model_drafts(loaded: Loaded, tiny_model_path: Path) -> None:
    model, tokenizer = loaded
    draft_model, _ = load(tiny_model_path, backend="numpy")
    given: dict[str, Any] = {"draft_model": draft_model, "num_draft_tokens": 3}
    responses = stream_generate(model, tokenizer, "hello", 13, **given)
    assert sum(one.from_draft for one in responses) == 9, "a model agrees with itself"
    assert set(responses.stats.by_drafter) == {"draft-model"}
    plain = generate(model, tokenizer, "hello", max_tokens=13, mtp="off")
    assert generate(model, tokenizer, "hello", max_tokens=13, **given) == plain


def test_no_limit_is_the_context(loaded: Loaded) -> None:
    model, tokenizer = loaded
    prompt = [5] * (model.engine.max_sequence_tokens - 6)
    got = list(stream_generate(model, tokenizer, prompt, -1, ignore_eos=True))
    assert len(got) == 6


def test_progress_is_told(loaded: Loaded) -> None:
    calls: list[tuple[int, int]] = []

    def note(done: int, total: int) -> None:
        calls.append((done, total))

    generate(*loaded, [7] * 9, max_tokens=2, prompt_progress_callback=note)
    assert calls == [(0, 9), (9, 9)]


def test_processors_are_options(loaded: Loaded) -> None:
    model, tokenizer = loaded
    processors = make_logits_processors(logit_bias={65: 90.0}, repetition_penalty=1.1)
    text = generate(model, tokenizer, "hello", max_tokens=6, logits_processors=processors)
    expected = model.generate("hello", max_tokens=6, logit_bias={65: 90.0}, repetition_penalty=1.1)
    assert text == expected.text
    assert make_logits_processors() == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sampler": lambda x: x}, "sampler holds <function .*make_sampler"),
        ({"logits_processors": [lambda t, x: x]}, "cannot be repeated .*make_logits_processors"),
        ({"kv_bits": 4}, "kv_bits is not supported"),
        ({"max_kv_size": 512}, "max_kv_size is not supported"),
        ({"input_embeddings": np.zeros((1, 2))}, "input_embeddings is not supported"),
        ({"prompt_cache": ["layers"]}, r"prompt_cache is \['layers'\]"),
        ({"draft_model": "org/name"}, "draft_model is 'org/name'"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"sampler": make_sampler(top_p=2)}, "top_p is 2"),
        ({"top_q": 0.5}, "Unknown option 'top_q'"),
    ],
)
def test_what_cannot_be_met_is_refused(loaded: Loaded, options: dict[str, Any], words: str) -> None:
    with pytest.raises(HeadlongError, match=words):
        generate(*loaded, "hello", **options)


@pytest.mark.parametrize("prompt", [5, [None], "", b"hello"])
def test_impossible_prompts_are_refused(loaded: Loaded, prompt: Any) -> None:
    with pytest.raises(HeadlongError):
        generate(*loaded, prompt)


def test_what_load_has_not_returned_is_refused(loaded: Loaded) -> None:
    """mlx-lm takes tokenizers of transformers; a model of its own prints as hundreds of lines."""
    model, tokenizer = loaded
    given: tuple[Any, ...] = (
        (tokenizer, model, "model is <headlong"),
        (model, None, r"tokenizer is None. Give headlong.load\(…\)\[1\]"),
        ("org/name", tokenizer, "model is 'org/name'"),
    )
    for first, second, words in given:
        with pytest.raises(RequestError, match=words) as caught:
            generate(first, second, "hello")
        assert len(str(caught.value)) < 100


def test_draft_model_and_tokenizer_config_stand_in_mlx_lm_s_places(
    loaded: Loaded, tiny_model_path: Path
) -> None:
    model, tokenizer = loaded
    plain = [one.token for one in stream_generate(model, tokenizer, "hello", 5)]
    drafted = stream_generate(model, tokenizer, "hello", 5, model)
    assert [one.token for one in drafted] == plain
    _, other = load(tiny_model_path, {"eos_token": "A"}, backend="numpy")
    assert other.encode("A", add_special_tokens=False)[0] in other.eos_token_ids


def test_peak_memory_is_mlx_s_own_where_that_is_more(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a GPU has on a Mac need not be in the process's figure."""
    mlx = SimpleNamespace(get_peak_memory=lambda: 10**15)
    monkeypatch.setitem(sys.modules, "mlx.core", mlx)
    (response,) = stream_generate(*loaded, "hello", 1)
    assert response.peak_memory == 1e6


def test_options_go_before_the_sampler_s(loaded: Loaded) -> None:
    model, tokenizer = loaded
    given: dict[str, Any] = {"temperature": 0.9, "seed": 4, "max_tokens": 9}
    text = generate(model, tokenizer, "hello", sampler=make_sampler(0.1), **given)
    assert text == model.generate("hello", **given).text
    assert text == generate(model, model.tokenizer, "hello", **given)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"adapter_path": "lora"}, "adapter_path .*fuse"),
        ({"model_config": {"rope_theta": 1}}, "model_config"),
        ({"tokenizer_config": {"padding_side": "left"}}, "padding_side"),
        ({"return_config": True}, "return_config .*backbone"),
        ({"quantum": 1}, "quantum"),
    ],
)
def test_what_load_cannot_meet_is_refused(
    tiny_model_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(RequestError, match=words):
        load(tiny_model_path, backend="numpy", **options)


def test_load_takes_mlx_lm_s_arguments(tiny_model_path: Path) -> None:
    model, tokenizer = load(
        tiny_model_path,
        return_config=False,
        lazy=True,
        model_config={},
        adapter_path=None,
        tokenizer_config={"trust_remote_code": True, "eos_token": "A"},
        backend="numpy",
    )
    assert tokenizer.eos_token_ids == {*model.tokenizer.eos_ids, tokenizer.encode("A", False)[0]}


def test_a_token_can_be_made_to_end_answers(loaded: Loaded) -> None:
    model, _ = loaded
    tokenizer = MlxTokenizer(model.tokenizer)
    tokens = model.generate("hello", max_tokens=8).token_ids
    tokenizer.add_eos_token(tokens[3])
    responses = list(stream_generate(model, tokenizer, "hello", 8))
    place = tokens.index(tokens[3])
    assert [one.token for one in responses] == list(tokens[: place + 1])
    assert responses[-1].finish_reason == "stop"
    assert tokens[3] not in model.tokenizer.eos_ids
