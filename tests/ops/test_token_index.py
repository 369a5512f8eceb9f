"""The token index: longest match, latest place; compiled and in Python the same."""

import random
from collections.abc import Callable

import pytest

from headlong.ops import _native
from headlong.ops.host_ops import TokenIndex
from headlong.ops.native.host import NativeHost
from headlong.ops.numpy.host import NumpyHost
from headlong.ops.token_index import (
    COPY_BONUS,
    COPY_FORGOTTEN,
    MAX_MATCH,
    MAX_PLACES,
    PythonIndex,
)

MakeIndex = Callable[[], TokenIndex]

both = pytest.mark.parametrize("make", [PythonIndex, _native.TokenIndex])


@both
def test_nothing_is_found_in_nothing(make: MakeIndex) -> None:
    for history in ([], [1], [1, 2], [1, 1]):
        assert make().find(history, 2, ()) is None


@both
def test_newest_pair_does_not_match_itself_but_may_overlap_the_one_before(make: MakeIndex) -> None:
    assert make().find([1, 2, 3], 2, ()) is None
    assert make().find([7, 7, 7], 2, ()) == (2, 2)


@both
def test_longest_match_beats_latest_and_latest_wins_among_equals(make: MakeIndex) -> None:
    assert make().find([1, 2, 3, 7, 2, 3, 8, 1, 2, 3], 2, ()) == (3, 3)
    assert make().find([1, 2, 7, 1, 2, 8, 1, 2], 2, ()) == (5, 2)


@both
def test_short_matches_can_be_refused(make: MakeIndex) -> None:
    history = [1, 2, 3, 9, 1, 2, 3]
    assert make().find(history, 3, ()) == (3, 3)
    assert make().find(history, 4, ()) is None
    assert make().find([1, 9, 1], 0, ()) is None, "one token is chance, whatever is asked"


@both
def test_assumed_tokens_count_and_are_not_remembered(make: MakeIndex) -> None:
    index, history = make(), [5, 1, 2, 3, 9, 5, 1]
    assert index.find(history, 2, (2, 3)) == (4, 4)
    assert index.find(history, 2, ()) == (2, 2)
    assert index.find([*history, 8], 2, (2, 3)) == (4, 2)


@both
def test_length_is_bounded(make: MakeIndex) -> None:
    assert make().find([1, 2, 3] * 40, 2, ()) == (117, MAX_MATCH)


@both
def test_only_the_latest_places_are_compared(make: MakeIndex) -> None:
    history = [9, 1, 2, *[token for i in range(MAX_PLACES) for token in (100 + i, 1, 2)], 9, 1, 2]
    assert make().find(history, 3, ()) is None
    assert make().find(history[6:], 3, ()) is None
    del history[3:6]
    assert make().find(history, 3, ()) == (3, 3)


@both
def test_copy_goes_on_behind_an_edit_from_one_equal_token(make: MakeIndex) -> None:
    index, copied = make(), list(range(100, 120))
    history = [*copied, 7, *copied[:8]]
    assert index.find(history, 2, ()) == (8, 8)
    assert index.find([*history, 50], 2, ()) is None, "nothing says where the edit ends"
    replaced = [*history, 50, copied[9]]
    assert index.find(replaced, 2, ()) == (10, 1 + COPY_BONUS)
    dropped = [*history, 50, copied[9], 51, 52, copied[15]]
    assert index.find(dropped, 2, ()) == (16, 1 + COPY_BONUS)


@both
def test_place_nearest_to_where_the_copy_would_be_wins_among_equals(make: MakeIndex) -> None:
    index = make()
    copied = [1, 2, 3, 4, 5, 6, 7, 8, 30, 9, 30, 10, 11, 30]
    index.find([*copied, 99, *copied[:8]], 2, ())
    assert index.find([*copied, 99, *copied[:8], 98, 97, 30], 2, ()) == (11, 1 + COPY_BONUS)


@both
def test_match_elsewhere_wins_unless_the_bonus_makes_the_copy_longer(make: MakeIndex) -> None:
    elsewhere, copied = [70, 71, 72, 131], list(range(100, 140))
    history = [*elsewhere, *range(10), *copied, 7, *copied[:30]]
    for num_equal, expected in ((3, (46, 1 + COPY_BONUS)), (4, (4, 4))):
        index = make()
        index.find(history, 2, ())
        assert index.find([*history, *elsewhere[-num_equal:]], 2, ()) == expected


@both
def test_copy_that_is_not_found_again_is_forgotten(make: MakeIndex) -> None:
    for num_new, expected in ((COPY_FORGOTTEN - 1, 1 + COPY_BONUS), (COPY_FORGOTTEN, None)):
        index, copied = make(), list(range(100, 200))
        history = [*copied, 7, *copied[:8]]
        index.find(history, 2, ())
        edited = [*history, *range(300, 300 + num_new), copied[8 + num_new]]
        found = index.find(edited, 2, ())
        assert (found and found[1]) == expected


@both
def test_history_that_shrinks_is_refused(make: MakeIndex) -> None:
    index = make()
    index.find([1, 2, 3], 2, ())
    with pytest.raises(ValueError, match="only ever grows"):
        index.find([1, 2], 2, ())


@pytest.mark.parametrize("num_kinds", [2, 4, 20, 1000])
def test_compiled_index_finds_what_the_definition_finds(num_kinds: int) -> None:
    rng = random.Random(num_kinds)
    compiled, defined = _native.TokenIndex(), PythonIndex()
    history: list[int] = []
    num_found = 0
    while len(history) < 3000:
        start = rng.randrange(len(history) + 1)
        copied = history[start : start + rng.randrange(12)]
        history += [*(rng.randrange(num_kinds) for _ in range(rng.randrange(1, 5))), *copied]
        assumed = tuple(rng.randrange(num_kinds) for _ in range(rng.randrange(3)))
        asked = (history, rng.randrange(8), assumed)
        found = compiled.find(*asked)
        assert found == defined.find(*asked)
        num_found += found is not None
    assert num_found > 10


def test_each_backend_has_its_own_index() -> None:
    assert isinstance(NativeHost().make_token_index(), _native.TokenIndex)
    assert isinstance(NumpyHost().make_token_index(), PythonIndex)


def test_tokens_that_are_none_are_refused() -> None:
    for wrong in (["a"], [2**40], [None]):
        with pytest.raises((TypeError, RuntimeError, ValueError)):
            _native.TokenIndex().find(wrong, 2, ())  # type: ignore[arg-type]
