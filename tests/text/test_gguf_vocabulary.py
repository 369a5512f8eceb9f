"""Vocabularies rebuilt from GGUF metadata, held against what llama.cpp makes of the same files."""

import json
from pathlib import Path
from typing import Any

import pytest

from headlong.errors import TextError
from headlong.text.gguf_vocabulary import read_gguf_vocabulary
from headlong.text.tokenizer import Tokenizer, load_tokenizer
from headlong.weights.checkpoint import open_checkpoint
from headlong.weights.sources import resolve_model
from tiny_text import (
    CONTROL,
    NORMAL,
    byte_level_metadata,
    byte_level_tokenizer,
    sentencepiece_metadata,
    sentencepiece_tokenizer,
)

GOLDEN = Path(__file__).parent / "golden"


def pieces(tokenizer: Tokenizer, text: str, **options: bool) -> list[str]:
    ids = tokenizer.encode(text, add_special=False, **options)
    return [tokenizer.token_text(i) for i in ids]


def assert_golden(tokenizer: Tokenizer, name: str) -> None:
    """Compare with every text of a golden file; its provenance is written in it."""
    golden = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    for case in golden["with_special_parsed"]:
        assert tokenizer.encode(case["text"], add_special=False) == case["ids"], case["text"]
    for case in golden["with_special_as_text"]:
        ids = tokenizer.encode(case["text"], add_special=False, parse_special=False)
        assert ids == case["ids"], case["text"]
    for case in golden["with_special_added"]:
        assert tokenizer.encode(case["text"]) == case["ids"], case["text"]
    for case in golden.get("chat", ()):
        assert tokenizer.apply_chat_template(case["messages"]) == case["text"]


def test_default_model_gives_llama_cpp_tokens(default_model_path: Path) -> None:
    tokenizer = load_tokenizer(open_checkpoint(default_model_path))
    assert_golden(tokenizer, "smollm2-135m-instruct")
    assert {tokenizer.token_text(i) for i in tokenizer.eos_ids} == {"<|im_end|>", "<|endoftext|>"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("qwen2.5-coder-0.5b-instruct", {"<|im_end|>", "<|endoftext|>"}),
        ("gemma-3-270m", {"<end_of_turn>", "<eos>"}),
    ],
)
def test_other_real_models_give_llama_cpp_tokens(name: str, ends: set[str]) -> None:
    tokenizer = load_tokenizer(open_checkpoint(resolve_model(name)))
    assert_golden(tokenizer, name)
    assert {tokenizer.token_text(i) for i in tokenizer.eos_ids} == ends


def test_byte_level_merges_apply_in_order() -> None:
    assert pieces(byte_level_tokenizer(), "hello hé") == ["hell", "o", " h", "�", "�"]


def test_control_tokens_in_text_are_those_tokens_only_when_parsed() -> None:
    tokenizer = byte_level_tokenizer()
    assert pieces(tokenizer, "h<|im_end|>") == ["h", "<|im_end|>"]
    assert pieces(tokenizer, "h<|im_end|>", parse_special=False) == list("h<|im_end|>")


def test_user_defined_tokens_are_whole_either_way() -> None:
    tokenizer = byte_level_tokenizer()
    assert pieces(tokenizer, "h<note>") == ["h", "<note>"]
    assert pieces(tokenizer, "h<note>", parse_special=False) == ["h", "<note>"]
    note = tokenizer.encode("<note>", add_special=False)[0]
    assert not tokenizer.is_special(note)


def test_unused_tokens_have_no_text_and_never_come_from_text() -> None:
    tokenizer = byte_level_tokenizer()
    unused = byte_level_metadata()["tokenizer.ggml.tokens"].index("[PAD]")
    assert tokenizer.token_bytes(unused) == b""
    assert pieces(tokenizer, "[PAD]") == list("[PAD]")


def test_qwen2_composes_characters_as_its_own_tokenizer_does() -> None:
    composed, decomposed = "\u00e9", "e\u0301"
    assert pieces(byte_level_tokenizer(pre="qwen2"), decomposed) == ["�", "�"]
    qwen = byte_level_tokenizer(pre="qwen2")
    assert qwen.encode(decomposed) == qwen.encode(composed)
    gpt2 = byte_level_tokenizer(pre="gpt-2")
    assert gpt2.encode(decomposed) != gpt2.encode(composed)


def test_whole_pieces_win_over_merges_where_the_family_says_so() -> None:
    merges = ["l l"]  # 'he' and 'hell' are tokens that no merge reaches
    assert pieces(byte_level_tokenizer(pre="smaug-bpe", merges=merges), "hell") == ["h", "e", "ll"]
    assert pieces(byte_level_tokenizer(pre="llama-bpe", merges=merges), "hell") == ["hell"]


def test_sentencepiece_joins_the_best_score_first() -> None:
    tokenizer = sentencepiece_tokenizer(add_space_prefix=False)
    assert pieces(tokenizer, "abc") == ["abc"]
    assert pieces(tokenizer, " ab") == [" ab"]
    assert pieces(tokenizer, " abc") == [" a", "bc"]  # '▁a' is best, and then 'bc' beats '▁ab'


def test_sentencepiece_writes_unknown_characters_as_bytes() -> None:
    tokenizer = sentencepiece_tokenizer(add_space_prefix=False)
    ids = tokenizer.encode("aéü", add_special=False)
    assert [tokenizer.token_bytes(i) for i in ids] == [b"a", "é".encode(), b"\xc3", b"\xbc"]


def test_sentencepiece_prefix_space_is_the_files_choice() -> None:
    assert pieces(sentencepiece_tokenizer(), "b") == [" ", "b"]
    assert pieces(sentencepiece_tokenizer(add_space_prefix=False), "b") == ["b"]


def test_sentencepiece_user_defined_spaces_come_before_merges() -> None:
    """Gemma: '  a' is its two-space token and 'a', although ' a' scores far better."""
    tokenizer = sentencepiece_tokenizer(add_space_prefix=False)
    assert pieces(tokenizer, "b  a") == ["b", "  ", "a"]


def test_sentencepiece_never_builds_control_tokens_from_letters() -> None:
    tokenizer = sentencepiece_tokenizer(add_space_prefix=False)
    assert pieces(tokenizer, "a</s>") == ["a", "</s>"]
    assert pieces(tokenizer, "a</s>", parse_special=False) == ["a", "</s", ">"]


def test_gemma4_merges_as_its_list_says_and_adds_no_space() -> None:
    """Scores are there, too, and mean nothing: by them 'abc' would be one token."""
    merges = ["▁ a", "b c", "a bc"]
    tokenizer = sentencepiece_tokenizer(model="gemma4", merges=[*merges[:2], "a b"])
    assert pieces(tokenizer, " abc") == [" a", "bc"]
    assert pieces(tokenizer, "abc") == ["a", "bc"]
    assert pieces(sentencepiece_tokenizer(model="gemma4", merges=merges), "abc") == ["abc"]
    ids = tokenizer.encode("ü", add_special=False)
    assert [tokenizer.token_bytes(i) for i in ids] == [b"\xc3", b"\xbc"]


def test_gemma4_begins_with_bos_whatever_an_early_file_says() -> None:
    tokenizer = sentencepiece_tokenizer(model="gemma4", merges=["a b"], add_bos_token=False)
    assert tokenizer.encode("a")[0] == 1


def test_gemma4_ends_a_turn_where_a_tool_is_to_answer() -> None:
    metadata = sentencepiece_metadata(model="gemma4", merges=["a b"])
    at = metadata["tokenizer.ggml.tokens"].index("<b>")
    metadata["tokenizer.ggml.tokens"][at] = "<|tool_response>"
    assert at in Tokenizer(read_gguf_vocabulary(metadata)).eos_ids


def test_bos_is_added_as_the_file_says() -> None:
    assert sentencepiece_tokenizer().encode("a")[0] == 1
    assert sentencepiece_tokenizer(add_bos_token=False).encode("a")[0] != 1
    bos = byte_level_tokenizer().bos_id
    assert byte_level_tokenizer().encode("h")[0] != bos
    assert byte_level_tokenizer(add_bos_token=True).encode("h")[0] == bos
    assert byte_level_tokenizer(pre="llama-bpe").encode("h")[0] == bos


def test_eos_is_added_only_when_the_file_says() -> None:
    assert sentencepiece_tokenizer(add_eos_token=True).encode("a")[-1] == 2
    assert sentencepiece_tokenizer().encode("a")[-1] != 2


def test_stated_end_tokens_end_a_turn_whatever_their_name() -> None:
    tokenizer = byte_level_tokenizer(eos_token_id=5, eot_token_id=6)
    assert {5, 6} <= tokenizer.eos_ids


def test_named_templates_are_read() -> None:
    metadata = byte_level_metadata() | {"tokenizer.chat_template.tool_use": "tools!"}
    assert dict(read_gguf_vocabulary(metadata).templates)["tool_use"] == "tools!"


ENDS = {"bos_token_id": 0, "eos_token_id": 0}
DAMAGED: list[tuple[dict[str, Any], str]] = [
    (byte_level_metadata(model="bert"), "'bert'"),
    (byte_level_metadata(tokens=None), "no tokenizer.ggml.tokens"),
    (byte_level_metadata(merges=None), "no tokenizer.ggml.merges"),
    (byte_level_metadata(token_type=None), "no tokenizer.ggml.token_type"),
    (byte_level_metadata(token_type=[NORMAL]), "266 tokens but 1 token types"),
    (byte_level_metadata(tokens=["a", 7]), "holds 7"),
    (byte_level_metadata(merges=["nospace"]), "'nospace'"),
    (byte_level_metadata(merges=["zz yy"]), "do not fit together"),
    (byte_level_metadata(tokens=["a", "a"], token_type=[CONTROL] * 2, **ENDS), "'a' twice"),
    (byte_level_metadata(eos_token_id=266), "266, but there are 266 tokens"),
    (byte_level_metadata(bos_token_id="x"), "'x'"),
    (sentencepiece_metadata(unknown_token_id=0.0), "is 0.0"),
    (sentencepiece_metadata(scores=[1.0]), "but 1 scores"),
    (sentencepiece_metadata(scores=None), "no tokenizer.ggml.scores"),
    (
        sentencepiece_metadata(tokens=["x" * 9999], token_type=[NORMAL], scores=[0.0], **ENDS),
        "9999 letters",
    ),
]


@pytest.mark.parametrize(("metadata", "reason"), DAMAGED, ids=[reason for _, reason in DAMAGED])
def test_damaged_metadata_is_refused_with_the_reason(metadata: dict[str, Any], reason: str) -> None:
    with pytest.raises(TextError, match=reason) as refusal:
        read_gguf_vocabulary(metadata)
    assert refusal.value.remedy
