"""Tokenizer: text to token ids and back, for one model.

In:  text or chat messages; token ids.
Out: token ids; text and exact bytes.
Works on a `Vocabulary`, whichever file that came from. Text is always decoded from bytes, so that
what `Detokenizer` streams and what `decode` returns at once can never differ.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from tokenizers import Encoding
from tokenizers import Tokenizer as Splitter

from headlong.errors import TextError
from headlong.text.chat_template import ChatOptions, ChatTemplate
from headlong.text.folder_vocabulary import read_folder_vocabulary
from headlong.text.gguf_vocabulary import read_gguf_vocabulary
from headlong.text.infill import InfillTokens, find_infill_tokens
from headlong.text.reasoning import find_tags
from headlong.text.rendered_chat import RenderedChat
from headlong.text.token_bound import TokenBound
from headlong.text.tools import HERMES, ToolStyle
from headlong.text.vocabulary import (
    SENTENCEPIECE_SPACE,
    TEXT_TAGS,
    Vocabulary,
    make_plain_splitter,
    spelled_bytes,
)
from headlong.weights.checkpoint import Checkpoint


class Tokenizer:
    """The tokens of one model and its chat template."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self.vocab_size = len(vocabulary.pieces)
        """How many ids there are; some may have no text."""
        self.eos_ids = vocabulary.eos_ids
        """Every id that ends a turn."""
        self.bos_id = vocabulary.bos_id
        self.eos_token = vocabulary.named_tokens.get("eos_token", "")
        """The main one of `eos_ids`, as it is spelled; "" if the model names none."""
        self.strips_first_space = vocabulary.strips_first_space
        """Whether a space at the very beginning of decoded text is an artefact and dropped."""
        pieces = vocabulary.pieces
        self._silent_ids = frozenset(
            token_id for token_id in vocabulary.special_ids if pieces[token_id] not in TEXT_TAGS
        )
        self.chat_template: ChatTemplate | None = None
        if vocabulary.templates:
            named, control = vocabulary.named_tokens, vocabulary.control_tokens.values()
            added = vocabulary.splitter.get_added_tokens_decoder().values()
            templates = vocabulary.templates
            tags = find_tags(templates.values(), {token.content for token in added})
            self.chat_template = ChatTemplate(templates, named, control, tags)

    @property
    def kind(self) -> str:
        """How text is cut and spelled, for people: "BPE, byte-level"."""
        return f"{type(self._vocabulary.splitter.model).__name__}, {self._vocabulary.spelling}"

    @property
    def tool_style(self) -> ToolStyle:
        """How the model writes tool calls."""
        return HERMES if self.chat_template is None else self.chat_template.tool_style

    @cached_property
    def infill_tokens(self) -> InfillTokens | None:
        """What the model fills in gaps with; None if it was not trained to."""
        added = self._vocabulary.splitter.get_added_tokens_decoder()
        return find_infill_tokens({token.content: i for i, token in added.items()})

    @cached_property
    def _bound(self) -> TokenBound:
        return TokenBound([self.token_bytes(token_id) for token_id in range(self.vocab_size)])

    def min_num_tokens(self, text: str) -> int:
        """Return a number of tokens that `text` surely has, in a fraction of the time to count."""
        own = self._vocabulary
        if own.splitter.normalizer is not None:
            readable = text.encode("utf-8", "replace").decode()
            text = own.splitter.normalizer.normalize_str(readable)
            if own.spelling == "sentencepiece":
                text = text.replace(SENTENCEPIECE_SPACE, " ")
        return self._bound.min_num_tokens(text)

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Return the token ids of `text`; characters that the vocabulary lacks are left out.

        Args:
            text: Any text; it may be empty.
            add_special: Put the model's own beginning (and end) around it, usually BOS.
            parse_special: Read control tokens written in the text as those tokens; if not, they
                are ordinary text and cannot steer the model.
        """
        own = self._vocabulary
        splitter = own.splitter if parse_special else own.plain_splitter
        ids: list[int] = _cut(splitter, text).ids
        return [*own.prefix_ids, *ids, *own.suffix_ids] if add_special else ids

    def decode(self, token_ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Return the text of `token_ids`; bytes that are not UTF-8 become U+FFFD."""
        data = b"".join(
            self.token_bytes(i) for i in token_ids if not (skip_special and self.is_special(i))
        )
        if self.strips_first_space:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Return the exact bytes of a token; they need not be whole characters."""
        if not 0 <= token_id < self.vocab_size:
            problem = f"There is no token {token_id}: the vocabulary has {self.vocab_size}."
            raise TextError(problem, f"Use ids from 0 to {self.vocab_size - 1}.")
        own = self._vocabulary
        if own.spelling == "byte-level" and token_id in own.literal_ids:
            return own.pieces[token_id].encode()
        return spelled_bytes(own.pieces[token_id], own.spelling)

    def token_text(self, token_id: int) -> str:
        """Return a token as printable text; parts of characters show as U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", errors="replace")

    def has_same_tokens(self, other: "Tokenizer") -> bool:
        """Tell whether every id means the same token in both."""
        return self._vocabulary.pieces == other._vocabulary.pieces

    @property
    def added_ids(self) -> frozenset[int]:
        """Tokens that were added to those found in text: controls, tool calls, thinking."""
        return frozenset(self._vocabulary.splitter.get_added_tokens_decoder())

    def is_special(self, token_id: int) -> bool:
        """Tell whether a token steers the model instead of being text."""
        return token_id in self._silent_ids

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """Write messages as the text the model was trained to answer."""
        options = ChatOptions(tools, add_generation_prompt)
        return self.render_chat(messages, options).text

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], options: ChatOptions | None = None
    ) -> RenderedChat:
        """Render messages as `apply_chat_template` does, with control tokens in content marked."""
        if self.chat_template is None:
            raise TextError(
                "This model has no chat template, so how it wants messages written is not known.",
                "Give it a plain prompt to continue, or use an instruct version of the model.",
            )
        return self.chat_template.render(messages, options)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[int]:
        """Return the token ids of messages, up to where the answer begins."""
        return self.encode_rendered(self.render_chat(messages, ChatOptions(tools)))

    def encode_rendered(self, rendered: RenderedChat) -> list[int]:
        """Return the token ids of what a chat template wrote; control tokens are its own only."""
        # Templates write BOS themselves where the model wants one; adding it here would double it.
        if not rendered.marks:
            return self.encode(rendered.marked, add_special=False)
        guard, text, ids, start = next(iter(rendered.marks)), rendered.marked, list[int](), 0
        plain = make_plain_splitter(self._vocabulary.splitter)
        plain.add_special_tokens([guard])
        for token_id, begin, end in [*self._find_control_tokens(text), (-1, len(text), len(text))]:
            # Some vocabularies put a space before the very first word only; a guard stands first.
            part, lead = rendered.unmarked(text[start:begin]), guard if start else ""
            ids += [*_cut(plain, lead + part).ids[len(lead) :], token_id]
            start = end
        return ids[:-1]

    def _find_control_tokens(self, text: str) -> Iterator[tuple[int, int, int]]:
        """Yield the control tokens in a text: id, and from where to where."""
        tokens = self._vocabulary.control_tokens
        encoded = _cut(self._vocabulary.splitter, text, has_offsets=True)
        for token_id, (begin, end) in zip(encoded.ids, encoded.offsets, strict=True):
            # What a vocabulary lacks is <unk> by id, but not by its text.
            if token_id in tokens and tokens[token_id] in text[begin:end]:
                yield token_id, begin, end


def _cut(splitter: Splitter, text: str, *, has_offsets: bool = False) -> Encoding:
    """Run a splitter over one text."""
    # The calls of the library that let other threads run meanwhile.
    encode = splitter.encode_batch if has_offsets else splitter.encode_batch_fast
    try:
        return encode([text], add_special_tokens=False)[0]
    except TypeError as error:
        # The library takes only text that UTF-8 can write, which half a surrogate pair is not.
        problem = "The text holds half of a surrogate pair, which is no character."
        raise TextError(problem, "Remove it, or send both halves.") from error


def load_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """Build the tokenizer that belongs to a checkpoint."""
    if checkpoint.format == "gguf":
        return Tokenizer(read_gguf_vocabulary(checkpoint.metadata))
    return Tokenizer(read_folder_vocabulary(checkpoint.path, checkpoint.metadata))
