"""mlx-lm's names for what the tokenizer does."""

from typing import Any

import pytest

from headlong.errors import TextError
from headlong.mlx_lm.tokenizer import MlxTokenizer
from tiny_text import byte_level_tokenizer, sentencepiece_tokenizer, thinking_changes

MESSAGES = [{"role": "user", "content": "hi"}]


def test_names_give_what_the_tokenizer_has() -> None:
    own = byte_level_tokenizer()
    tokenizer = MlxTokenizer(own)
    assert tokenizer.encode("hello") == own.encode("hello")
    assert tokenizer.encode("hello", add_special_tokens=False) == own.encode(
        "hello", add_special=False
    )
    ids = own.encode("hello", add_special=False)
    assert tokenizer.decode(ids) == "hello"
    assert tokenizer.decode(ids[0]) == own.decode(ids[:1])
    assert len(tokenizer) == tokenizer.vocab_size == own.vocab_size
    assert tokenizer.eos_token_ids == own.eos_ids
    assert tokenizer.eos_token_id in own.eos_ids
    assert tokenizer.decode([tokenizer.eos_token_id or 0]) == tokenizer.eos_token
    assert tokenizer.decode([tokenizer.eos_token_id or 0], skip_special_tokens=True) == ""


def test_a_text_begins_with_the_named_token() -> None:
    tokenizer = MlxTokenizer(sentencepiece_tokenizer())
    assert tokenizer.bos_token_id == tokenizer.encode("a")[0]
    assert tokenizer.bos_token == tokenizer.decode([tokenizer.bos_token_id])


def test_messages_become_ids_or_text() -> None:
    own = byte_level_tokenizer()
    tokenizer = MlxTokenizer(own)
    assert tokenizer.has_chat_template
    assert tokenizer.chat_template is not None
    assert tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True) == own.encode_chat(
        MESSAGES
    )
    text = tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    assert text == own.apply_chat_template(MESSAGES)
    shorter = tokenizer.apply_chat_template(MESSAGES, tokenize=False)
    assert shorter == own.apply_chat_template(MESSAGES, add_generation_prompt=False)
    assert shorter != text


def test_switches_of_the_template_pass_through() -> None:
    tokenizer = MlxTokenizer(byte_level_tokenizer(**thinking_changes()))
    assert tokenizer.has_thinking
    texts = {
        tokenizer.apply_chat_template(
            MESSAGES, tokenize=False, add_generation_prompt=True, enable_thinking=thinks
        )
        for thinks in (True, False)
    }
    assert len(texts) == 2


def test_models_reason_by_default_as_in_mlx_lm() -> None:
    """Also where the template's own default is not to."""
    changes = thinking_changes()
    changes["chat_template"] = "{{ '<think>' if enable_thinking is true else '<think></think>' }}"
    tokenizer = MlxTokenizer(byte_level_tokenizer(**changes))
    assert tokenizer.apply_chat_template(MESSAGES, tokenize=False) == "<think>"
    text = tokenizer.apply_chat_template(MESSAGES, tokenize=False, enable_thinking=False)
    assert text == "<think></think>"


@pytest.mark.parametrize("name", ["chat_template", "return_tensors", "truncation"])
def test_arguments_of_transformers_are_refused(name: str) -> None:
    """The template would not read them."""
    tokenizer = MlxTokenizer(byte_level_tokenizer())
    given: dict[str, Any] = {name: "x"}
    with pytest.raises(TextError, match=f"{name} is not supported"):
        tokenizer.apply_chat_template(MESSAGES, **given)
    given = {name: None, "return_dict": False}
    assert tokenizer.apply_chat_template(MESSAGES, **given) == tokenizer.apply_chat_template(
        MESSAGES
    )


def test_tokens_that_end_answers_belong_to_one_tokenizer() -> None:
    own = byte_level_tokenizer()
    tokenizer = MlxTokenizer(own)
    tokenizer.add_eos_token("A")
    tokenizer.add_eos_token(7)
    tokenizer.add_eos_token("8")
    added = {tokenizer.encode("A", add_special_tokens=False)[0], 7, 8}
    assert tokenizer.eos_token_ids == own.eos_ids | added
    tokenizer.eos_token_ids = {3}
    assert tokenizer.eos_token_ids == {3}
    assert 3 not in own.eos_ids or len(own.eos_ids) > 1
    with pytest.raises(TextError, match="is not one token"):
        tokenizer.add_eos_token("quite a sentence")
