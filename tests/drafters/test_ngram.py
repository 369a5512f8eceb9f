"""N-gram lookup: longest match, latest place, copies that run on."""

from fakes import ArgmaxGuesser
from headlong.drafters.draft_plan import NO_THRESHOLD, DraftPlan, Threshold
from headlong.drafters.drafter import Draft, DraftRequest
from headlong.drafters.ngram import NgramDrafter
from headlong.ops.calibration import EDGES, Calibration
from headlong.ops.native.host import NativeHost


def draft(history: list[int], num_tokens: int, drafter: NgramDrafter | None = None) -> Draft:
    """Draft once from a fresh index."""
    drafter = drafter or NgramDrafter(NativeHost())
    return drafter.draft(
        [DraftRequest(drafter.begin(), history, DraftPlan(num_tokens), ArgmaxGuesser())]
    )[0]


def test_tokens_after_the_match_are_copied() -> None:
    found = draft([1, 2, 3, 4, 5, 9, 1, 2], 3)
    assert found.token_ids == (3, 4, 5)
    assert found.sources == ("ngram",) * 3


def test_no_match_gives_no_draft() -> None:
    assert draft([1, 2, 3, 4], 3) == Draft()


def test_single_token_match_is_chance() -> None:
    assert draft([1, 2, 3, 1], 3) == Draft()


def test_longest_match_beats_latest() -> None:
    # "2 3" ends last with 8, but "1 2 3" is followed by 7.
    assert draft([1, 2, 3, 7, 2, 3, 8, 1, 2, 3], 1).token_ids == (7,)


def test_latest_of_equal_matches_wins() -> None:
    assert draft([1, 2, 7, 1, 2, 8, 1, 2], 1).token_ids == (8,)


def test_copy_repeats_where_it_meets_the_end() -> None:
    assert draft([5, 6, 5, 6, 5, 6], 5).token_ids == (5, 6, 5, 6, 5)


def test_min_match_refuses_shorter_ones() -> None:
    drafter = NgramDrafter(NativeHost(), min_match=4)
    assert draft([1, 2, 3, 9, 1, 2, 3], 2, drafter) == Draft()
    assert draft([1, 2, 3, 4, 9, 1, 2, 3, 4], 2, drafter).token_ids == (9, 1)


def test_copy_may_begin_in_what_was_assumed() -> None:
    drafter = NgramDrafter(NativeHost())
    ask = DraftRequest(drafter.begin(), [4, 5, 6, 4], DraftPlan(6), ArgmaxGuesser(), forced=(5,))
    assert drafter.draft([ask])[0].token_ids == (5, 6, 4, 5, 6, 4)


def copy(history: list[int], threshold: Threshold) -> Draft:
    """Copy once from a fresh index."""
    drafter = NgramDrafter(NativeHost())
    return drafter.look_up(drafter.begin(), history, threshold)


def test_one_token_is_copied_behind_a_long_match() -> None:
    assert copy([1, 2, 3, 4, 5, 6, 1, 2, 3, 4], NO_THRESHOLD) == Draft((5,), (4 / 6,), ("ngram",))
    assert copy([1, 2, 3, 5, 6, 1, 2, 3], NO_THRESHOLD) == Draft()


def test_nothing_is_copied_that_is_not_worth_its_row() -> None:
    history = [1, 2, 3, 4, 5, 6, 1, 2, 3, 4]
    worth = Calibration(tuple(0.8 for _ in range(len(EDGES) + 1)))
    assert copy(history, Threshold(0.79, 0.79, worth)).token_ids == (5,)
    assert copy(history, Threshold(0.81, 0.81, worth)) == Draft()


def test_draft_goes_on_behind_what_a_grammar_forces() -> None:
    drafter = NgramDrafter(NativeHost())
    history = [1, 2, 3, 4, 5, 9]
    ask = DraftRequest(drafter.begin(), history, DraftPlan(4), ArgmaxGuesser(), forced=(1, 2))
    found = drafter.draft([ask])[0]
    assert found.token_ids == (1, 2, 3, 4)
    assert found.sources == ("grammar", "grammar", "ngram", "ngram")
