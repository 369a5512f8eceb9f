"""A model's tokenizer under the names that programs for mlx-lm use.

In:  text, messages or ids, with mlx-lm's arguments and defaults.
Out: ids and text of the model's own `Tokenizer`, which does all the work.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any

from headlong.errors import TextError
from headlong.text.chat_template import ChatOptions
from headlong.text.tokenizer import Tokenizer

_OF_TRANSFORMERS = ("chat_template", "return_tensors", "padding", "truncation", "max_length")
"""Arguments that mlx-lm hands on to transformers, and that are no variables of a template."""


class MlxTokenizer:
    """The tokenizer that `load` returns."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.own = copy(tokenizer)
        """What `LLM` works with; tokens that end an answer can be added here alone."""

    def __len__(self) -> int:
        return self.own.vocab_size

    @property
    def vocab_size(self) -> int:
        """How many ids there are."""
        return self.own.vocab_size

    @property
    def eos_token_ids(self) -> set[int]:
        """Every id that ends an answer."""
        return set(self.own.eos_ids)

    @eos_token_ids.setter
    def eos_token_ids(self, ids: Iterable[int]) -> None:
        """Let these and no others end an answer."""
        self.own.eos_ids = frozenset(ids)

    def add_eos_token(self, token: str | int) -> None:
        """Let one more token end an answer, named by its text or its id."""
        self.own.eos_ids |= {self.convert_tokens_to_ids(token)}

    @property
    def eos_token(self) -> str:
        """The main one of them, as it is spelled."""
        return self.own.eos_token

    @property
    def eos_token_id(self) -> int | None:
        """The id of that."""
        return self.convert_tokens_to_ids(self.eos_token) if self.eos_token else None

    @property
    def bos_token_id(self) -> int | None:
        """The id a text begins with, if the model wants one."""
        return self.own.bos_id

    @property
    def bos_token(self) -> str | None:
        """That token, as it is spelled."""
        return None if self.own.bos_id is None else self.own.token_text(self.own.bos_id)

    @property
    def has_chat_template(self) -> bool:
        """Whether messages can be written."""
        return self.own.chat_template is not None

    @property
    def chat_template(self) -> str | None:
        """The template's source."""
        return None if self.own.chat_template is None else self.own.chat_template.source

    @property
    def has_thinking(self) -> bool:
        """Whether the model reasons before it answers."""
        return self.own.chat_template is not None and self.own.chat_template.tags is not None

    def convert_tokens_to_ids(self, token: str | int) -> int:
        """Return the id of one token."""
        if isinstance(token, int) or token.isdecimal():
            return int(token)
        ids = self.own.encode(token, add_special=False)
        if len(ids) != 1:
            raise TextError(f"{token!r} is not one token, but {len(ids)}.", "Give its id instead.")
        return ids[0]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text."""
        return self.own.encode(text, add_special=add_special_tokens)

    def decode(self, token_ids: int | Sequence[int], skip_special_tokens: bool = False) -> str:
        """Return the text of ids."""
        ids = [token_ids] if isinstance(token_ids, int) else [int(one) for one in token_ids]
        return self.own.decode(ids, skip_special=skip_special_tokens)

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> Any:
        """Write messages as ids, or as text; `variables` are the template's own.

        Answers need `add_generation_prompt=True`. As in mlx-lm, a model that can reason does,
        unless `enable_thinking=False`.
        """
        variables.pop("return_dict", None)  # mlx-lm never returns one
        for name in _OF_TRANSFORMERS:
            if variables.pop(name, None):
                raise TextError(f"{name} is not supported.", "Leave it out; ids come as a list.")
        if self.has_thinking:
            variables.setdefault("enable_thinking", True)
        options = ChatOptions(
            tools, add_generation_prompt, continue_final_message, kwargs=variables
        )
        written = self.own.render_chat(conversation, options)
        return self.own.encode_rendered(written) if tokenize else written.text
