"""The official client against a real server process: everything it offers, unchanged."""

import asyncio
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatFields
from openai.types.completion_create_params import CompletionCreateParamsBase as CompletionFields

from headlong.server.chat_protocol import ChatBody
from headlong.server.completions import CompletionBody
from live_server import LiveServer
from openai_calls import ASKED, ask, content, extra, model_name, stream


@pytest.fixture(scope="module")
def client(live: LiveServer) -> OpenAI:
    """The client, set up as any user would."""
    return live.client()


def test_models_are_listed_and_shown(client: OpenAI) -> None:
    name = model_name(client)
    assert client.models.retrieve(name).id == name


def test_answer_has_text_usage_and_telemetry(client: OpenAI) -> None:
    answer = ask(client)
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert extra(answer)["mtp"]["mode"] == "auto"
    assert extra(answer)["metrics"]["speculative_decoding"]["num_draft_tokens"] >= 0
    assert extra(answer)["timings"]["predicted_n"] == answer.usage.completion_tokens
    assert "warnings" not in extra(answer)


def test_stream_says_the_same_as_the_whole_answer(client: OpenAI) -> None:
    whole, chunks = ask(client), stream(client)
    assert content(chunks) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks].count(None) == len(chunks) - 1
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert not chunks[-1].choices[0].delta.content, "the end comes by itself"
    assert extra(chunks[-1])["mtp"]["rounds"] >= 1
    assert len({chunk.id for chunk in chunks}) == 1


def test_usage_comes_in_a_chunk_of_its_own_when_asked(client: OpenAI) -> None:
    chunks = stream(client, stream_options={"include_usage": True})
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 0
    assert "mtp" in extra(chunks[-1])


@pytest.mark.parametrize("temperature", [0, 0.9])
def test_mtp_never_changes_the_text(client: OpenAI, temperature: float) -> None:
    texts = {
        ask(client, temperature=temperature, seed=11, extra_body=body).choices[0].message.content
        for body in (
            {"mtp": "off"},
            {"mtp": "auto"},
            {"mtp": 5},
            {"num_speculative_tokens": 2},
            {"speculative.n_max": 0},
        )
    }
    assert len(texts) == 1


def test_header_names_the_policy(client: OpenAI) -> None:
    answer = ask(client, extra_headers={"X-Headlong-MTP": "3"})
    assert extra(answer)["mtp"]["mode"] == 3
    assert extra(answer)["mtp"]["num_drafted"] > 0


def test_sources_join_to_the_text(client: OpenAI) -> None:
    chunks = stream(client, extra_body={"return_sources": True, "mtp": 4})
    sources = [
        source
        for chunk in chunks
        for choice in chunk.choices
        for source in extra(choice).get("sources", [])
    ]
    assert "".join(source["text"] for source in sources) == content(chunks)
    assert {"backbone", "head"} <= {source["source"] for source in sources}
    assert all((source["depth"] == 0) == (source["source"] == "backbone") for source in sources)


def test_choices_have_seeds_that_follow_one_another(client: OpenAI) -> None:
    together = ask(client, n=3, seed=20, temperature=1.0)
    alone = [ask(client, seed=20 + i, temperature=1.0) for i in range(3)]
    texts = [choice.message.content for choice in together.choices]
    assert texts == [one.choices[0].message.content for one in alone]
    assert [choice.index for choice in together.choices] == [0, 1, 2]
    assert len(set(texts)) > 1
    chunks = stream(client, n=3, seed=20, temperature=1.0)
    assert [content(chunks, i) for i in range(3)] == texts


def test_drawn_seeds_differ(client: OpenAI) -> None:
    texts = {ask(client, temperature=1.5).choices[0].message.content for _ in range(3)}
    assert len(texts) > 1


def test_stop_strings_end_before_themselves(client: OpenAI) -> None:
    free = ask(client).choices[0].message.content or ""
    stop = free[8:11]
    cut = ask(client, stop=[stop, "never"]).choices[0]
    assert cut.message.content == free[: free.index(stop)]
    assert cut.finish_reason == "stop"


def test_logprobs_rank_the_greedy_token_first(client: OpenAI) -> None:
    answer = ask(client, logprobs=True, top_logprobs=3)
    assert answer.choices[0].logprobs is not None
    entries = answer.choices[0].logprobs.content or []
    assert "".join(entry.token for entry in entries) == answer.choices[0].message.content
    for entry in entries:
        assert entry.top_logprobs[0].token == entry.token
        assert entry.top_logprobs[0].logprob == entry.logprob <= 0
        assert bytes(entry.bytes or []).decode(errors="replace") == entry.token
    streamed = [
        entry
        for chunk in stream(client, logprobs=True, top_logprobs=3)
        for choice in chunk.choices
        if choice.logprobs is not None
        for entry in choice.logprobs.content or []
    ]
    assert [one.logprob for one in streamed] == [one.logprob for one in entries]


def test_logit_bias_and_penalties_reach_the_sampler(client: OpenAI) -> None:
    banned = ask(client, logprobs=True).choices[0].logprobs
    assert banned is not None
    first = (banned.content or [])[0].token
    token_id = client.post("../tokenize", body={"prompt": first}, cast_to=object)["tokens"][0]  # type: ignore[index] # plain JSON
    other = ask(client, logit_bias={str(token_id): -100}).choices[0].message.content or ""
    assert not other.startswith(first)
    assert ask(client, extra_body={"repetition_penalty": 1.5}).choices[0].message.content


def test_history_is_found_in_the_prefix_cache(client: OpenAI) -> None:
    messages = [*ASKED, {"role": "user", "content": "Why these? " * 20}]
    first = ask(client, messages=messages)
    said = first.choices[0].message
    again = ask(client, messages=[*messages, said, {"role": "user", "content": "And now?"}])
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    assert first.usage is not None
    assert (again.usage.prompt_tokens_details.cached_tokens or 0) >= first.usage.prompt_tokens - 8
    apart = ask(client, messages=messages, extra_body={"cache_salt": "mine"})
    assert apart.usage is not None
    assert apart.usage.prompt_tokens_details is not None
    assert apart.usage.prompt_tokens_details.cached_tokens == 0


def test_content_may_come_in_parts(client: OpenAI) -> None:
    parts = [{"type": "text", "text": "Name three"}, {"type": "text", "text": "colours."}]
    assert ask(client, messages=[{"role": "user", "content": parts}]).choices[0].message.content


def test_fields_without_effect_are_named(client: OpenAI) -> None:
    answer = ask(client, user="me", store=True, metadata={"a": "b"}, reasoning_effort="low")
    warnings = " ".join(extra(answer)["warnings"])
    assert all(name in warnings for name in ("user", "store", "metadata", "reasoning_effort"))
    streamed = stream(client, user="me")
    assert extra(streamed[-1])["warnings"] == ["user has no effect here."]


def test_every_field_of_openai_is_known_by_name() -> None:
    """Guards a client that was updated and is told that its fields do not exist."""
    for theirs, ours in ((ChatFields, ChatBody), (CompletionFields, CompletionBody)):
        missing = {*theirs.__annotations__} - {*ours.model_fields}
        assert not missing


def test_answer_longer_than_the_context_warns(client: OpenAI) -> None:
    answer = ask(client, max_tokens=100_000, stop=" ")
    assert "room for" in extra(answer)["warnings"][0]


def test_completions_continue_text(client: OpenAI) -> None:
    name = model_name(client)
    answer = client.completions.create(
        model=name, prompt=["The sky is", "Grass is"], max_tokens=8, temperature=0, logprobs=2, n=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[0].text == answer.choices[1].text
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert "".join(logprobs.tokens or []) == answer.choices[0].text
    assert (logprobs.text_offset or [])[:2] == [0, len((logprobs.tokens or [""])[0])]
    echoed = client.completions.create(model=name, prompt="The sky is", echo=True, temperature=0)
    assert echoed.choices[0].text.startswith("The sky is")
    assert echoed.usage is not None
    assert echoed.usage.completion_tokens <= 16
    streamed = client.completions.create(
        model=name, prompt="The sky is", echo=True, temperature=0, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in streamed) == echoed.choices[0].text


def test_async_client_runs_many_at_once(live: LiveServer) -> None:
    async def main() -> list[str]:
        async with AsyncOpenAI(base_url=f"{live.url}/v1", api_key="x", max_retries=0) as client:
            answers = [
                client.chat.completions.create(
                    model="SmolLM2-135M-Instruct.Q4_1", messages=ASKED, max_tokens=12, seed=i
                )
                for i in range(8)
            ]
            return [one.choices[0].message.content or "" for one in await asyncio.gather(*answers)]

    texts = asyncio.run(main())
    alone = [ask(live.client(), max_tokens=12, seed=i, temperature=1).choices[0] for i in range(8)]
    assert texts == [one.message.content for one in alone]


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"model": "gpt-4"}, openai.NotFoundError, "SmolLM2-135M-Instruct"),
        ({"temperature": 2.1}, openai.BadRequestError, "from 0 to 2"),
        (
            {"messages": [{"role": "user", "content": "word " * 9000}]},
            openai.BadRequestError,
            "8192",
        ),
        ({"extra_body": {"mtp": "fast"}}, openai.BadRequestError, '"auto", "off"'),
        ({"top_logprobs": 3}, openai.BadRequestError, "logprobs"),
        ({"logit_bias": {"99999999": 1}}, openai.BadRequestError, "Ids go from 0"),
        ({"tool_choice": "required"}, openai.BadRequestError, "no tools"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            openai.BadRequestError,
            "schema",
        ),
    ],
)
def test_refusals_reach_the_client_as_its_own_errors(
    client: OpenAI, options: dict[str, Any], error: type[openai.APIStatusError], says: str
) -> None:
    with pytest.raises(error) as caught:
        client.chat.completions.create(
            **{"model": model_name(client), "messages": ASKED, **options}
        )
    assert says in str(caught.value)
    assert caught.value.body["message"]  # type: ignore[index] # the error object


def test_too_long_a_prompt_names_both_numbers(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, messages=[{"role": "user", "content": "word " * 9000}])
    assert caught.value.code == "context_length_exceeded"
    assert "8192" in str(caught.value)
    assert "90" in str(caught.value)
