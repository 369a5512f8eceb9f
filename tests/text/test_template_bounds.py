"""Sizes are found without building anything."""

import pytest

from headlong.errors import TextError
from headlong.text.template_bounds import MAX_TEXT, check_repetition, weigh


def test_repeated_element_weighs_each_time() -> None:
    once = weigh(["a" * 1000])
    assert weigh(["a" * 1000] * 7) == 7 * once
    assert weigh({"k": "a" * 1000}) > 1000
    assert weigh("a" * MAX_TEXT) == MAX_TEXT


def test_list_that_holds_itself_is_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(TextError, match="characters of memory"):
        weigh(endless)


@pytest.mark.parametrize(("left", "right"), [([1], 10_001), (10_001, (1,)), (2**3000, 2**3000)])
def test_lists_and_numbers_stay_small(left: object, right: object) -> None:
    with pytest.raises(TextError, match="characters of memory"):
        check_repetition(left, right)
    check_repetition([1], 10_000)
    check_repetition("a", 10_001)
