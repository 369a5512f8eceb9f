import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.style import Style

from headlong.cli.word_wrap import WordWrap

WIDTH = 12


def screen_after(pieces: list[str], style: Style | None = None) -> list[str]:
    """Return the lines of a terminal after these pieces, wide as `WIDTH`."""
    console = Console(file=io.StringIO(), force_terminal=True, width=WIDTH)
    wrap = WordWrap(console)
    for piece in pieces:
        wrap.write(piece, style)
    assert isinstance(console.file, io.StringIO)
    text = re.sub("\033\\[[0-9;]*m", "", console.file.getvalue())
    lines, column = [""], 0
    for token in re.findall("\033\\[\\d+D|\033\\[K|.|\n", text):
        if token == "\n":
            lines, column = [*lines, ""], 0
        elif token.endswith("D"):
            column = min(column, WIDTH - 1) - int(token[2:-1])
        elif token == "\033[K":
            lines[-1] = lines[-1][:column]
        else:
            if column == WIDTH:  # the terminal's own line end
                lines, column = [*lines, ""], 0
            lines[-1] = lines[-1][:column] + token
            column += 1
    return [line.rstrip() for line in lines]


@pytest.mark.parametrize("style", [None, Style(color="green")])
def test_word_that_came_in_pieces_moves_whole(style: Style | None) -> None:
    assert screen_after(["one two", " th", "er", "efore", " x"], style) == [
        "one two",
        "therefore x",
    ]


def test_word_that_fills_the_line_leaves_no_empty_one() -> None:
    assert screen_after(["abcdef abcde", " x"]) == ["abcdef abcde", "x"]


def test_word_longer_than_a_line_is_left_to_the_terminal() -> None:
    assert screen_after(["a ", "b" * 15]) == ["a bbbbbbbbbb", "bbbbb"]


def test_lines_of_code_are_left_to_the_terminal() -> None:
    lines = screen_after(["```py\n", "one two three\n", "```\n", "one two three"])
    assert lines == ["```py", "one two thre", "e", "```", "one two", "three"]


def test_own_line_ends_stay() -> None:
    assert screen_after(["a\n\nb", "\n", "c"]) == ["a", "", "b", "c"]


@given(st.lists(st.text("ab \n", max_size=8)))
def test_no_word_is_lost_or_cut(pieces: list[str]) -> None:
    words = "".join(pieces).split()
    shown = "\n".join(screen_after(pieces)).split()
    if all(len(word) <= WIDTH for word in words):
        assert shown == words
    else:
        assert "".join(shown) == "".join(words)
