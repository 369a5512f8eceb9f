"""Vocabularies from Hugging Face folders."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Splitter
from tokenizers import decoders, normalizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing

from headlong.errors import HeadlongError, TextError
from headlong.text.folder_vocabulary import read_folder_vocabulary
from headlong.text.gguf_vocabulary import read_gguf_vocabulary
from headlong.text.tokenizer import Tokenizer
from headlong.weights.checkpoint import open_checkpoint
from tiny_text import CHATML, make_splitter, write_folder


def load(folder: Path, **config: Any) -> Tokenizer:
    return Tokenizer(read_folder_vocabulary(folder, config))


@pytest.fixture(scope="module")
def twins(
    default_model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, Tokenizer]:
    """The default model's vocabulary from its GGUF, and the same saved as a folder."""
    vocabulary = read_gguf_vocabulary(open_checkpoint(default_model_path).metadata)
    stored = Splitter.from_str(vocabulary.splitter.to_str())
    stored.decoder = decoders.ByteLevel()
    folder = write_folder(tmp_path_factory.mktemp("smollm2"), stored)
    return Tokenizer(vocabulary), load(folder)


@given(text=st.text(max_size=60))
def test_folder_and_gguf_of_one_model_agree(twins: tuple[Tokenizer, Tokenizer], text: str) -> None:
    gguf, folder = twins
    for parse_special in (True, False):
        ids = gguf.encode(text, parse_special=parse_special)
        assert folder.encode(text, parse_special=parse_special) == ids
    assert folder.decode(ids) == gguf.decode(ids)


@given(data=st.data())
def test_decoding_equals_the_librarys_own(
    twins: tuple[Tokenizer, Tokenizer], data: st.DataObject
) -> None:
    _, folder = twins
    ids = data.draw(st.lists(st.integers(0, folder.vocab_size - 1), max_size=30))
    splitter = folder._vocabulary.splitter
    assert folder.decode(ids) == splitter.decode(ids, skip_special_tokens=True)


def test_sentencepiece_folder_spells_spaces_and_bytes(tmp_path: Path) -> None:
    vocabulary = {"<unk>": 0, "▁": 1, "a": 2, "▁a": 3} | {f"<0x{b:02X}>": 4 + b for b in range(256)}
    splitter = Splitter(BPE(vocabulary, [("▁", "a")], unk_token="<unk>", byte_fallback=True))
    splitter.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    splitter.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)])
    tokenizer = load(write_folder(tmp_path, splitter))
    ids = tokenizer.encode("a aé")
    assert [tokenizer.token_bytes(i) for i in ids] == [b" a", b" a", b"\xc3", b"\xa9"]
    assert tokenizer.decode(ids) == splitter.decode(ids) == "a aé"


def test_metaspace_without_prefix_keeps_the_first_space(tmp_path: Path) -> None:
    splitter = make_splitter()
    splitter.decoder = decoders.Metaspace(prepend_scheme="never")
    assert not load(write_folder(tmp_path, splitter)).strips_first_space
    splitter.decoder = decoders.Metaspace(prepend_scheme="always")
    assert load(write_folder(tmp_path, splitter)).strips_first_space


def test_special_tokens_are_told_from_added_ones(tmp_path: Path) -> None:
    tokenizer = load(write_folder(tmp_path, make_splitter()))
    special, added = tokenizer.encode("<s><note>")
    assert tokenizer.is_special(special)
    assert not tokenizer.is_special(added)
    assert tokenizer.encode("<s>", parse_special=False) == tokenizer.encode("<") + tokenizer.encode(
        "s"
    ) + tokenizer.encode(">")


def test_end_tokens_are_gathered_from_every_file(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path,
        make_splitter(),
        generation_config={"eos_token_id": [3, 4]},
        tokenizer_config={"eos_token": {"content": "<s>"}},
    )
    tokenizer = load(folder, eos_token_id=5)
    named = {tokenizer.encode(text)[0] for text in ("<s>", "<|im_end|>")}
    assert tokenizer.eos_ids == {3, 4, 5} | named


def test_post_processor_says_what_a_prompt_begins_with(tmp_path: Path) -> None:
    splitter = make_splitter()
    ids = {text: splitter.token_to_id(text) for text in ("<s>", "<|im_end|>")}
    splitter.post_processor = TemplateProcessing(
        single="<s> $A <|im_end|>", special_tokens=list(ids.items())
    )
    tokenizer = load(write_folder(tmp_path, splitter))
    assert tokenizer.encode("he") == [ids["<s>"], 256, ids["<|im_end|>"]]
    assert tokenizer.encode("") == list(ids.values())
    assert tokenizer.encode("he", add_special=False) == [256]


@pytest.mark.parametrize("has_bos", [True, False])
def test_tokenizer_config_outweighs_the_post_processor_on_bos(
    tmp_path: Path, has_bos: bool
) -> None:
    splitter = make_splitter()
    bos = splitter.token_to_id("<s>")
    if not has_bos:
        splitter.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    settings = {"bos_token": "<s>", "add_bos_token": has_bos}
    tokenizer = load(write_folder(tmp_path, splitter, tokenizer_config=settings))
    assert tokenizer.bos_id == bos
    assert tokenizer.encode("he") == ([bos, 256] if has_bos else [256])


def test_stored_truncation_and_padding_are_ignored(tmp_path: Path) -> None:
    splitter = make_splitter()
    splitter.enable_truncation(2)
    splitter.enable_padding(length=9)
    assert len(load(write_folder(tmp_path, splitter)).encode("hhh")) == 3


def test_rows_beyond_the_tokenizer_have_no_text(tmp_path: Path) -> None:
    tokenizer = load(write_folder(tmp_path, make_splitter()), vocab_size=300)
    assert tokenizer.vocab_size == 300
    assert tokenizer.decode([256, 299]) == "he"


def test_template_file_outweighs_tokenizer_config(tmp_path: Path) -> None:
    settings = {"chat_template": "old"}
    write_folder(tmp_path, make_splitter(), tokenizer_config=settings, chat_template=CHATML)
    rendered = load(tmp_path).apply_chat_template([{"role": "user", "content": "hi"}])
    assert rendered == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_list_of_named_templates_is_read(tmp_path: Path) -> None:
    entries = [
        {"name": "default", "template": "d"},
        {"name": "tool_use", "template": "t {{tools}}"},
    ]
    write_folder(tmp_path, make_splitter(), tokenizer_config={"chat_template": entries})
    tokenizer = load(tmp_path)
    messages = [{"role": "user", "content": "hi"}]
    assert tokenizer.apply_chat_template(messages) == "d"
    assert tokenizer.apply_chat_template(messages, tools=[{"a": 1}]).startswith("t ")


def test_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TextError, match=r"no tokenizer\.json"):
        load(tmp_path)


@pytest.mark.parametrize("contents", ["{}", "not json", '{"version": "1.0", "model": {}}'])
def test_damaged_tokenizer_is_refused(tmp_path: Path, contents: str) -> None:
    (tmp_path / "tokenizer.json").write_text(contents, encoding="utf-8")
    with pytest.raises(TextError, match="not a tokenizer we can read"):
        load(tmp_path)


def test_damaged_settings_are_refused(tmp_path: Path) -> None:
    write_folder(tmp_path, make_splitter())
    (tmp_path / "tokenizer_config.json").write_text("[", encoding="utf-8")
    with pytest.raises(HeadlongError, match=r"tokenizer_config\.json"):
        load(tmp_path)


def test_template_without_name_is_refused(tmp_path: Path) -> None:
    settings = {"chat_template": [{"template": "x"}]}
    with pytest.raises(TextError, match="no name or no text"):
        load(write_folder(tmp_path, make_splitter(), tokenizer_config=settings))


def test_unknown_decoder_is_refused_by_name(tmp_path: Path) -> None:
    splitter = make_splitter()
    splitter.decoder = decoders.WordPiece()
    with pytest.raises(TextError, match="WordPiece"):
        load(write_folder(tmp_path, splitter))


def test_impossible_vocabulary_size_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path, make_splitter())
    with pytest.raises(TextError, match="10000000000000 tokens"):
        load(tmp_path, vocab_size=10**13)


def test_empty_vocabulary_is_refused(tmp_path: Path) -> None:
    splitter = Splitter(BPE())
    splitter.decoder = decoders.ByteLevel()
    with pytest.raises(TextError, match="no tokens at all"):
        load(write_folder(tmp_path, splitter))


def test_end_tokens_outside_the_vocabulary_are_dropped(tmp_path: Path) -> None:
    write_folder(tmp_path, make_splitter(), generation_config={"eos_token_id": [3, 10**6, -1]})
    tokenizer = load(tmp_path)
    assert 3 in tokenizer.eos_ids
    assert all(0 <= i < tokenizer.vocab_size for i in tokenizer.eos_ids)
