"""Prompts on their way to the engine: text, messages, or token ids as they are.

In:  what a caller of the Python API gives.
Out: token ids, and how an answer to them is to be read.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypeAlias, cast

from headlong.errors import RequestError
from headlong.text.chat_template import ChatOptions
from headlong.text.reasoning import Reasoning
from headlong.text.tokenizer import Tokenizer

Message: TypeAlias = Mapping[str, Any]
Prompt: TypeAlias = str | Sequence[Message] | Sequence[int]


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """A prompt as token ids."""

    token_ids: tuple[int, ...]
    continues_text: bool = True
    """The answer goes on from the prompt's own text instead of beginning one."""
    reasoning: Reasoning | None = None
    """How the answer's reasoning begins; None if it is not separated."""
    warnings: tuple[str, ...] = ()


def prepare_prompt(tokenizer: Tokenizer, prompt: Prompt, options: ChatOptions) -> PreparedPrompt:
    """Turn a prompt of any kind into token ids; options are for messages only."""
    if is_chat(prompt):
        written = tokenizer.render_chat(cast(Sequence[Message], prompt), options)
        ids = tuple(tokenizer.encode_rendered(written))
        is_continued = options.continue_final_message
        return PreparedPrompt(ids, is_continued, written.reasoning, written.warnings)
    given = {
        "Tools": options.tools,
        "Options of the chat template": options.kwargs or options.continue_final_message,
        "Orders to think or not": options.think is not None,
    }
    for what, value in given.items():
        if value:
            raise RequestError(
                f"{what} were given with a prompt that is not a list of messages.",
                "They are written by the chat template: put the prompt into a user message.",
            )
    if isinstance(prompt, str):
        return PreparedPrompt(tuple(tokenizer.encode(prompt)))
    return PreparedPrompt(tuple(int(token_id) for token_id in cast(Sequence[int], prompt)))


def is_chat(prompt: Prompt) -> bool:
    """Tell messages from text and token ids; refuse what is none of them."""
    if isinstance(prompt, str):
        return False
    is_list = isinstance(prompt, Iterable) and not isinstance(prompt, bytes | bytearray)
    items = list(prompt) if is_list else [prompt]
    if items and all(isinstance(item, Mapping) for item in items):
        return True
    for item in items:
        if not is_list or type(item) is bool or not isinstance(item, Integral):
            raise RequestError(
                f"The prompt holds {item!r}, which is neither a message nor a token id.",
                "Give a string, a list of messages {'role': …, 'content': …}, or token ids.",
            )
    return False
