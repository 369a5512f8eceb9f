"""Stop strings are found wherever the text is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlong.text.stop import StopResult, StopScanner

FEW_LETTERS = st.text(alphabet="abc", max_size=12)
STOPS = st.lists(st.text(alphabet="abc", min_size=1, max_size=5), max_size=4).map(tuple)


def search_whole(text: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
    """The slow truth: cut before the stop string that is complete first, the longest of equals."""
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)], stop
    return text, None


@given(st.lists(FEW_LETTERS, max_size=8), STOPS)
def test_cutting_the_text_never_changes_the_result(
    pieces: list[str], stops: tuple[str, ...]
) -> None:
    scanner = StopScanner(stops)
    released, hit = "", None
    for piece in pieces:
        result = scanner.push(piece)
        released, hit = released + result.text, result.hit
    released += scanner.flush()
    assert (released, hit) == search_whole("".join(pieces), stops)


@given(FEW_LETTERS, STOPS)
def test_text_is_held_back_only_while_it_could_be_a_stop(text: str, stops: tuple[str, ...]) -> None:
    scanner = StopScanner(stops)
    result = scanner.push(text)
    held = scanner.flush()
    if result.hit is None:
        assert result.text + held == text
        assert not held or any(stop.startswith(held) for stop in stops)
        longer = [text[start:] for start in range(len(result.text))]
        assert not any(stop.startswith(end) for stop in stops for end in longer)


def test_stop_string_split_over_pieces_is_found() -> None:
    scanner = StopScanner(("\nUser:",))
    assert scanner.push("fine.\nUs") == StopResult("fine.", None)
    assert scanner.push("er: more") == StopResult("", "\nUser:")


def test_false_start_is_released_as_soon_as_it_fails() -> None:
    scanner = StopScanner(("END",))
    assert scanner.push("EN").text == ""
    assert scanner.push("EMY").text == "ENEMY"


def test_nothing_comes_out_after_a_hit() -> None:
    scanner = StopScanner(("x",))
    assert scanner.push("axb") == StopResult("a", "x")
    assert scanner.push("more") == StopResult("", "x")
    assert scanner.flush() == ""


def test_stop_complete_first_wins() -> None:
    assert StopScanner(("abcd", "bc")).push("abcd") == StopResult("a", "bc")


def test_longer_of_two_stops_ending_together_wins() -> None:
    assert StopScanner(("b", "ab")).push("xab") == StopResult("x", "ab")


def test_without_stop_strings_everything_passes() -> None:
    assert StopScanner(()).push("any text") == StopResult("any text", None)


def test_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one character"):
        StopScanner(("",))
