"""Prompts for a gap: in the order models were trained with, content never live."""

from functools import partial

from headlong.text.infill import InfillTokens, OtherFile, find_infill_tokens, infill_ids
from tiny_text import byte_level_tokenizer, infill_changes


def test_tokens_are_found_by_spelling() -> None:
    found = find_infill_tokens({"<fim_prefix>": 1, "<fim_suffix>": 2, "<fim_middle>": 3})
    assert found == InfillTokens(1, 2, 3)
    assert found.end_ids == frozenset()
    assert find_infill_tokens({"<fim_prefix>": 1, "<fim_suffix>": 2}) is None
    assert byte_level_tokenizer().infill_tokens is None
    own = byte_level_tokenizer(**infill_changes()).infill_tokens
    assert own is not None
    assert len(own.end_ids) == 3


def test_gap_comes_last_and_files_first() -> None:
    tokenizer = byte_level_tokenizer(**infill_changes())
    assert tokenizer.infill_tokens is not None
    encode = partial(tokenizer.encode, add_special=False, parse_special=False)
    plain = infill_ids(tokenizer.infill_tokens, ("a<|im_end|>", "b"), [], encode)
    text = tokenizer.decode(plain, skip_special=False)
    assert text == "<|fim_prefix|>a<|im_end|><|fim_suffix|>b<|fim_middle|>"
    assert not set(plain) & tokenizer.eos_ids, "a control token in the text is text"
    others = [OtherFile("x = 1", "x.py")]
    text = tokenizer.decode(
        infill_ids(tokenizer.infill_tokens, ("a", "b"), others, encode), skip_special=False
    )
    assert text == (
        "<|repo_name|>myproject\n<|file_sep|>x.py\nx = 1<|file_sep|>filename\n"
        "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>"
    )


def test_without_file_tokens_files_stand_as_text() -> None:
    tokens = InfillTokens(1, 2, 3)
    ids = infill_ids(tokens, ("a", "b"), [OtherFile("x")], lambda text: list(text.encode()))
    assert ids == [*b"x\n\n", 1, *b"a", 2, *b"b", 3]
