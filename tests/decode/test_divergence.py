"""Where two decodings differ, on sequences that can be compared by eye."""

from headlong.decode.divergence import find_divergence


def test_first_difference_is_found() -> None:
    assert find_divergence([1, 2, 3], [1, 9, 3]) == 1
    assert find_divergence("abc", "abd") == 2


def test_one_that_ends_sooner_differs_at_its_end() -> None:
    assert find_divergence([1, 2], [1, 2, 3]) == 2
    assert find_divergence([1, 2, 3], []) == 0


def test_the_same_has_no_divergence() -> None:
    assert find_divergence((1, 2), [1, 2]) is None
    assert find_divergence("", "") is None
