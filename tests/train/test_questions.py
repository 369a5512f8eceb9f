"""Composed questions: shares, wordings and sources."""

from headlong.train.prompt_files import Prompt
from headlong.train.questions import COMPOSED_CHAT, WORDINGS, compose_questions
from headlong.train.recipe import make_recipe

PYTHON = Prompt(
    ('def area(side: int) -> int:\n    """Area of a square.\n\n    >>> area(3)\n    9\n    """',),
    "py",
    "code",
)
SCRIPT = Prompt(
    (
        "/**\n * * Write a JavaScript function to add.\n * > add(1, 2)\n * 3\n */\n"
        "function add(a, b) {",
    ),
    "js",
    "code",
)
TALK = Prompt(("Write a class that stores numbers.\n\nuse {",), "talk", "code")


def composed(**shares: float) -> dict[float, list[tuple[str, str]]]:
    """Questions by their share."""
    recipe = make_recipe(
        {
            "prompts": {
                "self_written_share": 0.0,
                "passage_share": 0.0,
                "code_share": 0.0,
                **shares,
            }
        }
    )
    return dict(compose_questions([PYTHON, SCRIPT, TALK], recipe))


def test_only_kinds_with_a_share_are_composed() -> None:
    assert composed() == {}
    assert set(composed(passage_share=0.25, code_share=0.5)) == {0.25, 0.5}


def test_a_python_function_is_asked_for_in_a_block() -> None:
    found = [text for text, name in composed(code_share=0.5)[0.5] if name == "py_blocks"]
    assert f"```python\n{PYTHON.turns[0]}\n```" in found[0]
    assert len(set(found)) == 4


def test_a_javascript_comment_becomes_a_docstring() -> None:
    found = [text for text, name in composed(code_share=0.5)[0.5] if name == "js_blocks"]
    assert any(
        'def add(a, b):\n    """\n    Write a function to add.\n    >>> add(1, 2)\n    3\n    """'
        in text
        for text in found
    )
    assert any("```javascript" in text for text in found)


def test_prose_is_not_taken_for_code() -> None:
    assert not any(name == "talk_blocks" for _, name in composed(code_share=0.5)[0.5])


def test_chat_is_composed_of_all_topics_in_all_wordings() -> None:
    found = composed(chat_share=0.5)[0.5]
    assert len(set(found)) == len(WORDINGS["chat_forms"]) * len(WORDINGS["chat_topics"]) > 3000
    assert not any("{" in text for text, _ in found)
    assert {name for _, name in found} == {COMPOSED_CHAT}
