"""Prompts from files, folders, standard input and the package: what is read, what is refused."""

import json
from collections import Counter
from pathlib import Path

import pytest

from headlong.bench.prompt_sets import BUILT_IN, LOAD_SET, PromptSet, read_prompt_set
from headlong.errors import RequestError
from headlong.text.tools import check_tools


def read(*names: Path | str, stdin: str = "") -> PromptSet:
    return read_prompt_set([str(name) for name in names], lambda: stdin)


def test_built_in_set_covers_nine_tasks() -> None:
    prompts = read().prompts
    counts = Counter(prompt.task for prompt in prompts)
    assert set(counts) == {
        "code", "tools", "maths", "chat", "qa", "summary", "rag", "creative", "translation",
    }  # fmt: skip
    assert min(counts.values()) >= 4
    assert len({prompt.hash for prompt in prompts}) == len(prompts)


def test_built_in_set_travels_with_the_package() -> None:
    """scikit-build packs everything under src/headlong; the file must lie there."""
    assert BUILT_IN.parent.name == "bench"
    assert BUILT_IN.is_file()


def test_text_file_has_one_prompt_a_line(tmp_path: Path) -> None:
    path = tmp_path / "stories.txt"
    path.write_text("A fox.\n\n  A hen. \r\nÜber uns.", encoding="utf-8")
    found = read(path)
    assert [prompt.text for prompt in found.prompts] == ["A fox.", "A hen.", "Über uns."]
    assert {prompt.task for prompt in found.prompts} == {"stories"}
    assert found.prompts[1].name == f"{path}:3"
    assert found.prompts[0].messages == ({"role": "user", "content": "A fox."},)


def test_lines_of_json_bring_their_own_settings(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    lines = [
        {"messages": messages, "task": "chat", "max_tokens": 5, "temperature": 0.9},
        {"prompt": "Hello", "id": 7, "turns": None},
        {"turns": ["one", "two"], "task": "chat"},
        {"prompt": "Weather?", "tools": [{"type": "function"}]},
    ]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    found = read(path)
    chat, plain, turns, tools = found.prompts
    assert chat.messages == tuple(messages)
    assert (chat.task, chat.max_tokens, chat.temperature, chat.text) == ("chat", 5, 0.9, None)
    assert (plain.text, plain.task, plain.max_tokens) == ("Hello", "mine", None)
    assert turns.text == "one"
    assert tools.tools == ({"type": "function"},)
    assert found.notes == ("Conversations of which only the first turn is asked: 1.",)


def test_files_of_a_folder_are_one_prompt_each(tmp_path: Path) -> None:
    for name, text in (
        ("code/a.txt", "line one\nline two"),
        ("code/b.md", "# Title\n\nText"),
        ("chat/c.txt", "Hi"),
        ("list.jsonl", '{"prompt": "from a list"}'),
        ("picture.png", "not text"),
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    found = {prompt.text: prompt.task for prompt in read(tmp_path).prompts}
    assert found == {
        "line one\nline two": "code",
        "# Title\n\nText": "code",
        "Hi": "chat",
        "from a list": "list",
    }


def test_standard_input_may_be_lines_or_json() -> None:
    assert [p.text for p in read("-", stdin="a\nb\n").prompts] == ["a", "b"]
    assert [p.text for p in read("-", stdin='\n{"prompt": "c"}\n').prompts] == ["c"]
    assert read("-", stdin="a").source == "standard input"


def test_repeated_prompts_are_asked_once_and_named(tmp_path: Path) -> None:
    """The same prompt twice would make an interval look narrower than it is."""
    path = tmp_path / "p.txt"
    path.write_text("a\nb\na\na\n")
    found = read(path)
    assert [prompt.text for prompt in found.prompts] == ["a", "b"]
    assert "2 of 4 prompts repeat earlier ones" in found.notes[0]


def test_hash_says_what_is_asked_not_where_it_lies(tmp_path: Path) -> None:
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text("x\ny\n")
    second.write_text("y\nx\n")
    assert read(first).hash == read(second).hash
    second.write_text("y\nz\n")
    assert read(first).hash != read(second).hash


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{not json", "is not JSON"),
        ("[1, 2]", "is not a JSON object"),
        ("{}", "has neither a 'prompt' nor 'messages'"),
        ('{"prompt": "  "}', "has neither a 'prompt' nor 'messages'"),
        ('{"prompt": 5}', "has neither a 'prompt' nor 'messages'"),
        ('{"messages": []}', "no list of messages"),
        ('{"messages": ["hi"]}', "no list of messages"),
        ('{"prompt": "a", "max_tokens": 0}', "max_tokens is 0"),
        ('{"prompt": "a", "temperature": "hot"}', "temperature is 'hot'"),
        ('{"prompt": "a", "tools": "all"}', "'tools' that are no list"),
    ],
)
def test_bad_lines_are_named_with_their_number(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(f'{{"prompt": "good"}}\n\n{line}\n')
    with pytest.raises(RequestError) as caught:
        read(path)
    assert f"{path}:3" in caught.value.problem
    assert problem in caught.value.problem
    assert caught.value.remedy


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_empty_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "p.txt"
    path.write_bytes(content)
    with pytest.raises(RequestError, match=r"p\.txt: it is empty"):
        read(path)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    path = tmp_path / "p.txt"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RequestError, match="cannot be read"):
        read(path)
    with pytest.raises(RequestError, match="There is no prompt file"):
        read(tmp_path / "missing.txt")
    with pytest.raises(RequestError, match="holds no prompts"):
        read(folder)


def test_built_in_load_has_agents_with_tools_chat_and_stories() -> None:
    loaded = read_prompt_set([], lambda: "", LOAD_SET)
    assert loaded.source == "the built-in load set"
    by_task = Counter(prompt.task for prompt in loaded.prompts)
    assert by_task == {"agents": 6, "chat": 6, "stories": 6}
    for prompt in loaded.prompts:
        assert bool(prompt.tools) == (prompt.task == "agents")
        assert prompt.max_tokens is not None
        if prompt.tools:
            check_tools(prompt.tools)
