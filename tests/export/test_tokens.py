"""Tokenizers change their format only if they still cut text alike."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import pre_tokenizers

from headlong.errors import TextError
from headlong.export.gguf_tokens import describe_tokens
from headlong.export.tokenizer_files import check_tokenizer, write_tokenizer
from headlong.text.folder_vocabulary import read_folder_vocabulary
from headlong.text.gguf_vocabulary import read_gguf_vocabulary
from headlong.text.tokenizer import Tokenizer
from headlong.weights.checkpoint import Checkpoint
from tiny_text import (
    byte_level_metadata,
    byte_level_tokenizer,
    infill_changes,
    make_splitter,
    sentencepiece_metadata,
    thinking_changes,
    write_folder,
)

CONFIG: dict[str, Any] = {"max_position_embeddings": 512}


def written(folder: Path, metadata: dict[str, Any]) -> Tokenizer:
    """Write GGUF metadata's tokens as a folder's files and read those."""
    write_tokenizer(folder, read_gguf_vocabulary(metadata), CONFIG)
    return Tokenizer(read_folder_vocabulary(folder, CONFIG))


@pytest.mark.parametrize(
    "metadata",
    [
        byte_level_metadata(),
        byte_level_metadata(pre="llama-bpe", add_bos_token=True, **thinking_changes()),
        byte_level_metadata(pre="qwen2", add_eos_token=True, **infill_changes()),
        sentencepiece_metadata(),
        sentencepiece_metadata(add_bos_token=False, add_space_prefix=False),
    ],
    ids=["gpt-2", "llama-bpe", "qwen2", "sentencepiece", "sentencepiece bare"],
)
def test_gguf_tokens_become_a_folders(tmp_path: Path, metadata: dict[str, Any]) -> None:
    own, read = Tokenizer(read_gguf_vocabulary(metadata)), written(tmp_path, metadata)
    for text in ("hell, hé 12", " abc  ab</s>", "<|im_end|><note>"):
        assert own.encode(text) == read.encode(text)
    assert own.eos_token == read.eos_token
    assert own.bos_id == read.bos_id
    if own.chat_template is not None:
        chat = [{"role": "user", "content": "hello"}]
        assert own.encode_chat(chat) == read.encode_chat(chat)


@pytest.mark.parametrize("pre", ["gpt-2", "llama3", "qwen2", "smollm"])
def test_folders_tokens_become_ggufs_under_the_right_rule(tmp_path: Path, pre: str) -> None:
    metadata = byte_level_metadata(pre=pre, add_bos_token=True)
    write_tokenizer(tmp_path, read_gguf_vocabulary(metadata), CONFIG)
    found = describe_tokens(Checkpoint(tmp_path, "safetensors", "llama", CONFIG, {}))
    assert found["tokenizer.ggml.pre"] == pre
    for name in ("tokens", "merges", "bos_token_id", "eos_token_id", "add_bos_token"):
        assert found[f"tokenizer.ggml.{name}"] == metadata[f"tokenizer.ggml.{name}"], name
    assert found["tokenizer.chat_template"] == metadata["tokenizer.chat_template"]


def test_rule_without_a_name_is_refused(tmp_path: Path) -> None:
    splitter = make_splitter()
    splitter.pre_tokenizer = pre_tokenizers.Digits(individual_digits=True)
    write_folder(tmp_path, splitter)
    with pytest.raises(TextError, match="no name for"):
        describe_tokens(Checkpoint(tmp_path, "safetensors", "llama", CONFIG, {}))


def test_tokenizers_that_cut_otherwise_are_refused() -> None:
    with pytest.raises(TextError, match="The exported tokenizer reads"):
        check_tokenizer(byte_level_tokenizer(pre="gpt-2"), byte_level_tokenizer(pre="llama-bpe"))
    with pytest.raises(TextError, match="ends turns with"):
        check_tokenizer(byte_level_tokenizer(), byte_level_tokenizer(eot_token_id=0))
