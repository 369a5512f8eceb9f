"""Questions about code of the standard library."""

import ast
from collections import Counter

from headlong.train.library_code import LIBRARY, library_questions

_TASKS = ["Explain:\n{code}", "Test:\n{code}"]


def test_every_piece_is_code_that_parses() -> None:
    questions = library_questions(_TASKS)
    assert len(questions) > 1000
    for text, set_name in questions[:300]:
        assert set_name == LIBRARY
        ast.parse(text.partition("\n")[2])


def test_templates_rotate() -> None:
    kinds = Counter(text.partition(":")[0] for text, _ in library_questions(_TASKS))
    assert abs(kinds["Explain"] - kinds["Test"]) <= 1
