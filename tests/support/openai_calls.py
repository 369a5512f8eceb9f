"""Questions to a live server through the official client, the same for all who ask."""

from typing import Any

from openai import OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk

ASKED: list[Any] = [
    {"role": "system", "content": "You are brief."},
    {"role": "user", "content": "Name three colours."},
]


def ask(client: OpenAI, **options: Any) -> ChatCompletion:
    """Ask the usual question; greedy unless told otherwise."""
    options = {"messages": ASKED, "temperature": 0, "max_tokens": 16, **options}
    answer = client.chat.completions.create(model=model_name(client), **options)
    assert isinstance(answer, ChatCompletion)
    return answer


def stream(client: OpenAI, **options: Any) -> list[ChatCompletionChunk]:
    """Ask the same, streamed."""
    options = {"messages": ASKED, "temperature": 0, "max_tokens": 16, **options}
    return list(client.chat.completions.create(model=model_name(client), stream=True, **options))


def model_name(client: OpenAI) -> str:
    """Return what the server calls its model."""
    return client.models.list().data[0].id


def content(chunks: list[ChatCompletionChunk], index: int = 0) -> str:
    """Join what one choice said."""
    said = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(choice.delta.content or "" for choice in said)


def extra(answer: Any) -> dict[str, Any]:
    """Return the fields that are not OpenAI's."""
    return dict(answer.model_extra or {})
