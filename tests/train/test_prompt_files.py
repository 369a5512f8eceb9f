"""Prompt files and chat frames."""

import gzip
import json
from pathlib import Path

import pytest

from headlong.errors import RequestError, TextError
from headlong.train.prompt_files import read_frame, read_prompts
from tiny_text import byte_level_tokenizer


def write(path: Path, *records: object) -> Path:
    """Write JSON lines."""
    path.write_text("\n".join(json.dumps(record, ensure_ascii=False) for record in records))
    return path


def test_both_kinds_of_lines_are_read(tmp_path: Path) -> None:
    path = write(
        tmp_path / "prompts.jsonl",
        {"prompt": "one", "set": "s", "kind": "math", "licence": "MIT"},
        {"turns": ["two", "three"], "task": "chat"},
    )
    first, second = read_prompts(path)
    assert (first.turns, first.set_name, first.task, first.licence) == (
        ("one",),
        "s",
        "math",
        "MIT",
    )
    assert (second.turns, second.task) == (("two", "three"), "chat")


def test_unicode_line_separators_do_not_end_a_line(tmp_path: Path) -> None:
    """Guards against str.splitlines, which cuts JSON strings in two at U+2028."""
    path = write(tmp_path / "prompts.jsonl", {"prompt": "a\u2028b\x85c"})
    assert read_prompts(path)[0].turns == ("a\u2028b\x85c",)


def test_gzip_is_read(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"prompt": "hello"}\n'))
    assert read_prompts(path)[0].turns == ("hello",)


def test_tools_are_listed_in_the_question(tmp_path: Path) -> None:
    path = write(tmp_path / "prompts.jsonl", {"prompt": "the sum?", "tools": '[{"name": "add"}]'})
    assert '[{"name": "add"}]' in read_prompts(path)[0].turns[0]
    assert read_prompts(path)[0].turns[0].endswith("the sum?")


@pytest.mark.parametrize("line", ["{", '{"text": "a"}', '{"turns": []}', "[]", '{"prompt": 3}'])
def test_lines_without_a_question_are_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(line)
    with pytest.raises(RequestError, match=r"prompts\.jsonl:1"):
        read_prompts(path)


def test_a_damaged_gzip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"prompt": "hello"}\n')[:-6])
    with pytest.raises(RequestError, match="cannot be read"):
        read_prompts(path)


def test_a_framed_question_equals_the_rendered_template() -> None:
    tokenizer = byte_level_tokenizer()
    frame = read_frame(tokenizer)
    messages = [{"role": "user", "content": "hello"}]
    assert frame.frame("hello") == tokenizer.apply_chat_template(messages)
    messages += [{"role": "assistant", "content": "hi"}, {"role": "user", "content": "again"}]
    whole_chat = f"{frame.frame('hello')}hi{frame.before_next_user}again{frame.before_answer}"
    assert whole_chat == tokenizer.apply_chat_template(messages)


def test_a_template_that_changes_text_is_refused() -> None:
    tokenizer = byte_level_tokenizer(chat_template="{{ messages[0].content | upper }}")
    with pytest.raises(TextError, match="changes the text of messages"):
        read_frame(tokenizer)
