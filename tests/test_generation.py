"""One generation: text cut at stop strings, whatever was drafted; streams that can be dropped."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from headlong.config import MtpMode
from headlong.engine.request import FinishReason
from headlong.generation import Completion
from headlong.llm import LLM
from scripted_engine import ScriptedEngine

PROMPT = "hello, hello, hello, hello"


def test_chunks_join_to_the_whole_answer(tiny_llm: LLM) -> None:
    whole = tiny_llm.generate(PROMPT, max_tokens=40, temperature=1.0, seed=3)
    chunks = list(tiny_llm.stream(PROMPT, max_tokens=40, temperature=1.0, seed=3))
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert tuple(i for chunk in chunks for i in chunk.token_ids) == whole.token_ids
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].finish_reason is whole.finish_reason


@pytest.mark.parametrize("mtp", ["off", "auto", 1, 3, 6])
def test_stop_strings_cut_the_same_place_with_mtp(tiny_llm: LLM, mtp: MtpMode) -> None:
    """Random pieces of the free-running answer as stop strings, some inside accepted runs."""
    rng = random.Random(str(mtp))

    def answer(mtp: MtpMode, seed: int, stop: Sequence[str] = ()) -> Completion:
        return tiny_llm.generate(
            PROMPT,
            mtp=mtp,
            seed=seed,
            stop=stop,
            max_tokens=60,
            temperature=0.7,
            repetition_penalty=0.8,
            ignore_eos=True,
        )

    for seed in range(6):
        free = answer("off", seed).text
        start = rng.randrange(len(free) - 3)
        stop = [free[start : start + rng.randint(1, 3)], "never found"]
        plain, cut = answer("off", seed, stop), answer(mtp, seed, stop)
        assert cut.text == plain.text == free[: free.index(stop[0])]
        assert cut.token_ids == plain.token_ids
        assert cut.finish_reason is FinishReason.STOP


def test_text_that_could_begin_a_stop_is_held_then_released(tiny_llm: LLM) -> None:
    free = tiny_llm.generate(PROMPT, max_tokens=12, seed=1, ignore_eos=True).text
    held = tiny_llm.generate(
        PROMPT, max_tokens=12, seed=1, ignore_eos=True, stop=free[-1] + "never"
    )
    assert held.text == free
    assert held.finish_reason is FinishReason.LENGTH


def test_logprobs_are_the_same_with_mtp(tiny_llm: LLM) -> None:
    def answer(mtp: MtpMode) -> Completion:
        return tiny_llm.generate(
            PROMPT, mtp=mtp, max_tokens=30, temperature=0.7, seed=2, logprobs=4
        )

    plain, drafted = answer("off"), answer(5)
    assert plain.logprobs == drafted.logprobs
    assert plain.logprobs is not None
    assert len(plain.logprobs) == len(plain.token_ids)
    assert all(len(one.top) == 4 for one in plain.logprobs)


def test_dropped_stream_frees_its_request(tiny_llm: LLM) -> None:
    stream = tiny_llm.stream(PROMPT, max_tokens=50)
    next(stream)
    assert tiny_llm.engine.num_running == 1
    del stream
    assert tiny_llm.engine.num_running == 0


def test_closed_stream_ends(tiny_llm: LLM) -> None:
    stream = tiny_llm.stream(PROMPT, max_tokens=50)
    next(stream)
    stream.close()
    assert list(stream) == []
    assert stream.finish_reason is FinishReason.CANCELLED


def test_streams_read_in_turns_do_not_mix(tiny_llm: LLM) -> None:
    prompts = [PROMPT, "hell", "12 12 12"]
    alone = [tiny_llm.generate(p, max_tokens=20, temperature=0.7, seed=4).text for p in prompts]
    streams = [tiny_llm.stream(p, max_tokens=20, temperature=0.7, seed=4) for p in prompts]
    texts = [""] * len(prompts)
    open_streams = set(range(len(prompts)))
    while open_streams:
        for i in sorted(open_streams):
            chunk = next(streams[i])
            texts[i] += chunk.text
            if chunk.finish_reason is not None:
                open_streams.discard(i)
    assert texts == alone


def test_drafted_tokens_are_marked(tiny_llm: LLM) -> None:
    chunks = list(tiny_llm.stream("ab" * 30, mtp=4, max_tokens=60, repetition_penalty=0.5))
    drafted = [chunk for chunk in chunks if chunk.from_draft]
    assert drafted, "a model that repeats itself must accept n-gram drafts"
    assert {chunk.source for chunk in drafted} == {"ngram"}
    assert all(chunk.depth >= 1 for chunk in drafted)


def test_stream_ended_from_elsewhere_does_not_hang(tiny_llm: LLM) -> None:
    stream = tiny_llm.stream(PROMPT, max_tokens=50)
    next(stream)
    tiny_llm.engine.cancel(stream._stream)
    assert list(stream) == []
    assert stream.finish_reason is FinishReason.CANCELLED


def test_any_engine_client_can_answer(tiny_llm: LLM) -> None:
    engine = ScriptedEngine(tuple(tiny_llm.encode("said elsewhere")))
    elsewhere = replace(tiny_llm, engine=engine)
    stream = elsewhere.stream(PROMPT, max_tokens=50)
    assert {chunk.source for chunk in stream} == {"elsewhere"}
    answer = elsewhere.generate(PROMPT, stop="where")
    assert (answer.text, answer.finish_reason) == ("said else", FinishReason.STOP)
    assert engine.num_running == 0
