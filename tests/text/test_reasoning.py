"""Reasoning is told from the answer, however the text is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlong.text.reasoning import (
    KNOWN_TAGS,
    Beginning,
    Reasoning,
    ReasoningReader,
    beginning_after,
    beginning_inside,
    close_reasoning,
    find_tags,
)

THINK = KNOWN_TAGS[0]


def read(beginning: Beginning, *pieces: str) -> tuple[str, str]:
    """Return both parts of an answer in pieces."""
    reader = ReasoningReader(Reasoning(THINK, beginning))
    parts = [*(reader.push(piece) for piece in pieces), reader.flush()]
    return "".join(part.reasoning for part in parts), "".join(part.answer for part in parts)


@pytest.mark.parametrize(
    ("beginning", "text", "parts"),
    [
        (Beginning.OPEN, "<think>\nHm.\n</think>\n\nYes.\n", ("Hm.", "Yes.\n")),
        (Beginning.OPEN, "\n<think></think>Yes.", ("", "Yes.")),
        (Beginning.OPEN, "\n Yes <think>no</think>", ("", "\n Yes <think>no</think>")),
        (Beginning.OPEN, "<thin", ("", "<thin")),
        (Beginning.OPEN, "<think>a b", ("a b", "")),
        (Beginning.OPEN, "", ("", "")),
        (Beginning.REASONING, "\nHm. \n\nso\n</think>\n\n Yes", ("Hm. \n\nso", "Yes")),
        (Beginning.REASONING, "cut </thi", ("cut </thi", "")),
        (Beginning.REASONING, "a</think>b</think>", ("a", "b</think>")),
        (Beginning.ANSWER, " 4</think>", ("", " 4</think>")),
        (Beginning.ANSWER, "<think>again</think>4", ("again", "4")),
    ],
)
def test_parts_are_told_apart(beginning: Beginning, text: str, parts: tuple[str, str]) -> None:
    assert read(beginning, text) == parts
    assert read(beginning, *text) == parts, "letter by letter"


PIECES = st.lists(st.sampled_from(["<think>", "</think>", "<th", "ink>", "a", " ", "\n", "</"]))


@given(PIECES, st.sampled_from(Beginning))
def test_cutting_the_text_never_changes_the_parts(pieces: list[str], beginning: Beginning) -> None:
    assert read(beginning, *pieces) == read(beginning, "".join(pieces))


def test_text_without_tags_is_never_held_back() -> None:
    reader = ReasoningReader(Reasoning(THINK, Beginning.OPEN))
    assert reader.push("a ").answer == "a "
    assert reader.push("<think>").answer == "<think>"


def test_reasoning_is_known_from_template_or_tokens() -> None:
    assert find_tags(["{{ x.split('</think>')[1] }}"], ()) == THINK
    assert find_tags(["{{ x }}"], {"<think>", "</think>"}) == THINK
    assert find_tags(["{{ x }}"], {"<think>"}) is None
    assert find_tags(["'<|channel>thought\\n'"], ()) == KNOWN_TAGS[4]
    assert find_tags(["<|channel|>analysis"], ()) is None


def test_prompt_says_how_the_answer_begins() -> None:
    assert beginning_after("…assistant\n<think>\n", THINK) is Beginning.REASONING
    assert beginning_after("…<think>\n\n</think>\n\n", THINK) is Beginning.ANSWER
    assert beginning_after("Think in <think> tags.\n…assistant\n", THINK) is Beginning.OPEN
    gemma = KNOWN_TAGS[4]
    assert beginning_after("model\n<|channel>thought\n", gemma) is Beginning.REASONING


def test_begun_answer_says_where_it_is() -> None:
    assert beginning_inside("…assistant\n", "<think>So", THINK) is Beginning.REASONING
    assert beginning_inside("…assistant\n", "<think>So</think>It", THINK) is Beginning.ANSWER
    assert beginning_inside("…assistant\n<think>\n", "So", THINK) is Beginning.REASONING
    assert beginning_inside("…assistant\n", "So", THINK) is Beginning.ANSWER


def test_reasoning_that_is_not_wanted_is_closed() -> None:
    assert close_reasoning("a<think>\n", THINK) == "a<think>\n\n</think>\n\n"
    assert close_reasoning("a\n", THINK) == "a\n"
