"""N-gram lookup: longest match, latest place, copies that run on."""

from fakes import ArgmaxGuesser
from headlong.drafters.drafter import Draft, DraftAsk
from headlong.drafters.ngram import MAX_MATCH, NgramDrafter, NgramIndex


def draft(history: list[int], num_tokens: int, drafter: NgramDrafter | None = None) -> Draft:
    """Draft once from a fresh index."""
    drafter = drafter or NgramDrafter()
    return drafter.draft([DraftAsk(drafter.begin(), history, num_tokens, ArgmaxGuesser())])[0]


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
    drafter = NgramDrafter(min_match=4)
    assert draft([1, 2, 3, 9, 1, 2, 3], 2, drafter) == Draft()
    assert draft([1, 2, 3, 4, 9, 1, 2, 3, 4], 2, drafter).token_ids == (9, 1)


def test_index_grown_in_steps_equals_index_made_at_once() -> None:
    history = [1, 2, 3, 1, 2, 4, 1, 2, 3, 1, 2, 4, 7, 1, 2]
    stepwise, at_once = NgramIndex(), NgramIndex()
    for length in range(1, len(history) + 1):
        stepwise.extend(history[:length])
    at_once.extend(history)
    assert stepwise == at_once


def test_match_length_is_bounded() -> None:
    history = [1, 2, 3] * 40
    index = NgramIndex()
    index.extend(history)
    match = index.find(history)
    assert match is not None
    assert match.length == MAX_MATCH


def test_draft_goes_on_behind_what_a_grammar_forces() -> None:
    drafter = NgramDrafter()
    history = [1, 2, 3, 4, 5, 9]
    ask = DraftAsk(drafter.begin(), history, 4, ArgmaxGuesser(), forced=(1, 2))
    found = drafter.draft([ask])[0]
    assert found.token_ids == (1, 2, 3, 4)
    assert found.sources == ("grammar", "grammar", "ngram", "ngram")
