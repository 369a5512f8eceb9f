"""Tiny vocabularies one can reckon with by hand, as GGUF metadata and as Hugging Face folders."""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, pre_tokenizers
from tokenizers import Tokenizer as Splitter
from tokenizers.models import BPE

from headlong.text.gguf_vocabulary import read_gguf_vocabulary
from headlong.text.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
"""The 256 letters that byte-level vocabularies spell bytes with."""

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n"
    "{% else %}<think>\n{% endif %}{% endif %}"
)
"""A template that opens the reasoning itself, and keeps that of earlier answers."""


def byte_level_metadata(**changes: Any) -> dict[str, Any]:
    """GGUF metadata of a GPT-2-like vocabulary: all bytes, 'he', 'll', 'hell', and four others."""
    merged = ["he", "ll", "hell", "12", "Ġh"]
    others = [
        ("<|endoftext|>", CONTROL),
        ("<|im_start|>", CONTROL),
        ("<|im_end|>", CONTROL),
        ("<note>", USER_DEFINED),
        ("[PAD]", UNUSED),
    ]
    tokens = [*LETTERS, *merged, *(piece for piece, _ in others)]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [NORMAL] * 261 + [kind for _, kind in others],
        "tokenizer.ggml.merges": ["h e", "l l", "he ll", "1 2", "Ġ h"],
        "tokenizer.ggml.bos_token_id": tokens.index("<|im_start|>"),
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.chat_template": CHATML,
    }
    return _changed(metadata, changes)


def sentencepiece_metadata(**changes: Any) -> dict[str, Any]:
    """GGUF metadata of a Llama-like vocabulary; better scores are merged first."""
    entries = [("<unk>", UNKNOWN, 0.0), ("<s>", CONTROL, 0.0), ("</s>", CONTROL, 0.0)]
    entries += [(f"<0x{byte:02X}>", BYTE, 0.0) for byte in range(256)]
    entries += [("  ", USER_DEFINED, -1000.0), ("<b>", USER_DEFINED, -1000.0)]
    joined = {"▁ab": -5.0, "abc": -4.0, "bc": -3.0, "ab": -2.0, "▁a": -1.0, "</": -6.0, "</s": -7.0}
    letters = dict.fromkeys(["▁", "a", "b", "c", "é", "<", "/", "s", ">"], -10.0)
    entries += [(piece, NORMAL, score) for piece, score in (joined | letters).items()]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [piece for piece, _, _ in entries],
        "tokenizer.ggml.token_type": [kind for _, kind, _ in entries],
        "tokenizer.ggml.scores": [score for _, _, score in entries],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return _changed(metadata, changes)


def thinking_changes() -> dict[str, Any]:
    """Changes that make of `byte_level_metadata` a model that reasons; its tags are special."""
    plain = byte_level_metadata()
    tokens, kinds = plain["tokenizer.ggml.tokens"], plain["tokenizer.ggml.token_type"]
    return {
        "tokens": [*tokens, "<think>", "</think>"],
        "token_type": [*kinds, CONTROL, CONTROL],
        "chat_template": THINKING,
    }


def infill_changes() -> dict[str, Any]:
    """Changes that give `byte_level_metadata` tokens to fill in the middle with, as Qwen's."""
    plain = byte_level_metadata()
    names = ("fim_prefix", "fim_suffix", "fim_middle", "fim_pad", "repo_name", "file_sep")
    return {
        "tokens": [*plain["tokenizer.ggml.tokens"], *(f"<|{name}|>" for name in names)],
        "token_type": [*plain["tokenizer.ggml.token_type"], *[CONTROL] * len(names)],
    }


def byte_level_tokenizer(**changes: Any) -> Tokenizer:
    """The tokenizer of `byte_level_metadata`."""
    return Tokenizer(read_gguf_vocabulary(byte_level_metadata(**changes)))


def sentencepiece_tokenizer(**changes: Any) -> Tokenizer:
    """The tokenizer of `sentencepiece_metadata`."""
    return Tokenizer(read_gguf_vocabulary(sentencepiece_metadata(**changes)))


def make_splitter() -> Splitter:
    """A byte-level tokenizer as Hugging Face stores them: all bytes, 'he', and two special ones."""
    vocabulary = {letter: i for i, letter in enumerate(LETTERS)} | {"he": 256}
    splitter = Splitter(BPE(vocabulary, [("h", "e")]))
    splitter.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    splitter.decoder = decoders.ByteLevel()
    splitter.add_special_tokens([AddedToken("<s>"), AddedToken("<|im_end|>")])
    splitter.add_tokens([AddedToken("<note>", normalized=False)])
    return splitter


def write_folder(folder: Path, splitter: Splitter, **files: dict[str, Any] | str) -> Path:
    """Write tokenizer.json and the named files; `generation_config` stands for its .json."""
    splitter.save(str(folder / "tokenizer.json"))
    for name, contents in files.items():
        if isinstance(contents, str):
            (folder / f"{name}.jinja").write_text(contents, encoding="utf-8")
        else:
            (folder / f"{name}.json").write_text(json.dumps(contents), encoding="utf-8")
    return folder


def _changed(metadata: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Apply changes named by a key's last part; None takes a key out."""
    named = {f"tokenizer.ggml.{name}": value for name, value in changes.items()}
    if "chat_template" in changes:
        named["tokenizer.chat_template"] = named.pop("tokenizer.ggml.chat_template")
    return {key: value for key, value in (metadata | named).items() if value is not None}
