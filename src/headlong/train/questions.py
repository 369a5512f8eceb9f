"""Composed questions: about passages of the prompts, code to complete, texts to write.

In:  the prompts of the files, a recipe, `wordings.toml`.
Out: texts by kind, each kind with its share of all questions.
They supply kinds of prompts that agents and programmers use and prompt files have too few of.
"""

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headlong.train.library_code import library_questions
from headlong.train.prompt_files import Prompt
from headlong.train.recipe import Recipe

MIN_PASSAGE_CHARS = 300

WORDINGS: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("wordings.toml").read_text("utf-8")
)
"""Templates of the composed questions."""
_PASSAGE_TASKS, _CODE_TASKS = WORDINGS["passage_tasks"], WORDINGS["code_tasks"]

COMPOSED_CHAT = "composed_chat"
"""The set's name."""

_CODE_BEGINNINGS = ("def ", "import", "from", "#", "/", "using", "<?", "package", "class", "object")

_JS_SIGNATURE = re.compile(r"^function (\w+)\(([\w, ]*)\)", re.MULTILINE)


def compose_questions(
    prompts: Sequence[Prompt], recipe: Recipe
) -> list[tuple[float, list[tuple[str, str]]]]:
    """Return the share and the (text, set name) pairs of every kind with a share above 0."""
    wanted = recipe.prompts
    code = [prompt for prompt in prompts if prompt.task == "code"]
    kinds: list[tuple[float, list[tuple[str, str]]]] = []
    if wanted.passage_share:
        kinds.append((wanted.passage_share, _passage_questions(prompts)))
    if wanted.code_share:
        kinds.append((wanted.code_share, _code_questions(code)))
    if wanted.work_share:
        kinds.append((wanted.work_share, library_questions(WORDINGS["work_tasks"])))
    if wanted.chat_share:
        kinds.append((wanted.chat_share, _chat_questions()))
    return kinds


def _code_questions(prompts: Sequence[Prompt]) -> list[tuple[str, str]]:
    """Ask to complete a function: a code block that ends where the body should begin."""
    questions: list[tuple[str, str]] = []
    for number, prompt in enumerate(prompts):
        code = prompt.turns[0].rstrip()
        found = next((language for language in WORDINGS["languages"] if language[0] in code), None)
        if found is None or not code.startswith(_CODE_BEGINNINGS):
            continue
        set_name = f"{prompt.set_name}_blocks"
        # Users ask for Python most, so it gets every template; JavaScript is translated as well.
        stub = code if found[1] == "Python" else _as_python(code)
        if stub is not None:
            questions += [
                (task.format(language="Python", tag="python", code=stub), set_name)
                for task in _CODE_TASKS
            ]
        if found[1] != "Python":
            task = _CODE_TASKS[number % len(_CODE_TASKS)]
            questions.append((task.format(language=found[1], tag=found[2], code=code), set_name))
    return questions


def _as_python(code: str) -> str | None:
    """Translate the comment and the signature of a JavaScript function to Python."""
    signature = _JS_SIGNATURE.search(code)
    if signature is None or "/**" not in code:
        return None
    comment = code.partition("/**")[2].partition("*/")[0]
    lines = [line.strip().lstrip("* ") for line in comment.splitlines()]
    lines = [line.replace("JavaScript ", "") for line in lines if line]
    lines = [f">>>{line[1:]}" if line.startswith("> ") else line for line in lines]
    body = "\n    ".join(lines)
    return f'def {signature[1]}({signature[2]}):\n    """\n    {body}\n    """'


def _chat_questions() -> list[tuple[str, str]]:
    """Combine every topic with every wording."""
    return [
        (form.format(topic=topic), COMPOSED_CHAT)
        for form in WORDINGS["chat_forms"]
        for topic in WORDINGS["chat_topics"]
    ]


def _passage_questions(prompts: Sequence[Prompt]) -> list[tuple[str, str]]:
    """Ask for other tasks on the passages of reading-comprehension prompts."""
    questions: list[tuple[str, str]] = []
    for number, prompt in enumerate(prompts):
        passage = max(prompt.turns[0].split("\n\n"), key=len).removeprefix("Passage:\n")
        if prompt.task not in ("rag", "json") or len(passage) < MIN_PASSAGE_CHARS:
            continue
        sentence = f"{passage.split('. ')[0].rstrip('.')}."
        task = _PASSAGE_TASKS[number % len(_PASSAGE_TASKS)]
        text = task.format(passage=passage, sentence=sentence)
        questions.append((text, f"{prompt.set_name}_passages"))
    return questions
