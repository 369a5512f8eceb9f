"""What an answer replaces once in a copy is drafted as replaced, until it is copied unchanged."""

import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from fakes import ArgmaxGuesser
from headlong.drafters.draft_plan import DraftPlan
from headlong.drafters.drafter import DraftRequest
from headlong.drafters.ngram import NgramDrafter, NgramMemory
from headlong.drafters.replacements import MAX_PAIRS, Replacements
from headlong.ops.native.host import NativeHost
from headlong.ops.numpy.host import NumpyHost

OLD, NEW = (901, 902, 903), (801, 802)


def source() -> list[int]:
    """A text of 90 different tokens in which something stands three times."""
    text = list(range(100, 190))
    for place in (75, 50, 20):
        text[place:place] = OLD
    return text


def renamed(text: Sequence[int]) -> list[int]:
    """The text with every old piece made new."""
    made: list[int] = []
    at = 0
    while at < len(text):
        is_old = tuple(text[at : at + 3]) == OLD
        made += NEW if is_old else text[at : at + 1]
        at += 3 if is_old else 1
    return made


def rounds_for(answer: Sequence[int], host: NumpyHost | NativeHost, num_tokens: int = 5) -> int:
    """Return how many rounds it takes to write an answer that a source stands before."""
    drafter = NgramDrafter(host)
    state: NgramMemory = drafter.begin()
    history, at, num_rounds = [*source(), 7, *answer[:2]], 2, 0
    while at < len(answer):
        [draft] = drafter.draft(
            [DraftRequest(state, history, DraftPlan(num_tokens), ArgmaxGuesser())]
        )
        stood = 0
        for token in draft.token_ids:
            if at + stood == len(answer) or token != answer[at + stood]:
                break
            stood += 1
        history += answer[at : at + stood + 1]
        at, num_rounds = at + stood + 1, num_rounds + 1
    return num_rounds


def test_second_replacement_is_foreseen() -> None:
    learned = Replacements()
    answer = renamed(source())
    text = [*source(), 7, *answer[:26]]  # four tokens behind the first replacement
    learned.observe(text[:-10], 16)
    for num_known in range(len(text) - 9, len(text) + 1):
        known = text[:num_known]
        end = next((at for at in range(1, len(source())) if known[at - 1] == known[-1]), 0)
        if end:
            learned.observe(known, end)
    assert learned.pairs == {OLD: NEW}
    assert learned.copy(text, (), 50 + 1, 6) == [*text[51:53], *NEW, *text[56:58]]


def test_renaming_takes_fewer_rounds_on_both_hosts() -> None:
    answer = renamed(source())
    plain = -(-(len(source()) - 2) // 6)
    for host in (NumpyHost(), NativeHost()):
        taken = rounds_for(answer, host)
        assert taken <= plain + 4, "the first replacement costs rounds, the others none"
    assert rounds_for(source(), NumpyHost()) <= plain + 1


def test_pair_that_is_copied_unchanged_is_forgotten() -> None:
    learned = Replacements({OLD: NEW, (5, 6): (7,)})
    text = [*source(), 7]
    learned._num_seen = len(text)
    learned.observe([*text, 1, 2, *OLD[:2]], 3)
    assert OLD in learned.pairs
    learned.observe([*text, 1, 2, *OLD], 3)
    assert learned.pairs == {(5, 6): (7,)}


def test_without_pairs_a_copy_repeats_itself_at_the_end() -> None:
    history = [1, 2, 3, 4]
    assert Replacements().copy(history, (), 2, 5) == [3, 4, 3, 4, 3]
    assert Replacements().copy(history, (9,), 2, 5) == [3, 4, 9, 3, 4]
    assert Replacements().copy(history, (8, 9), 5, 3) == [9, 9, 9]
    assert Replacements().copy(history * 50, (9,), 0, 5) == [1, 2, 3, 4, 1]
    assert Replacements({(3, 4): ()}).copy(history, (), 2, 5) == []


@given(st.lists(st.integers(0, 4), min_size=2, max_size=120), st.integers(1, 12))
def test_any_history_is_drafted_from_without_harm(history: list[int], num_tokens: int) -> None:
    drafter = NgramDrafter(NumpyHost())
    state: NgramMemory = drafter.begin()
    for num_known in range(2, len(history) + 1):
        request = DraftRequest(state, history[:num_known], DraftPlan(num_tokens), ArgmaxGuesser())
        [draft] = drafter.draft([request])
        assert len(draft.token_ids) == len(draft.probs) == len(draft.sources) <= num_tokens
        assert set(draft.token_ids) <= set(history)
        assert len(state.replacements.pairs) <= MAX_PAIRS


def test_pairs_do_not_grow_without_bound() -> None:
    rng, learned = random.Random(1), Replacements()
    for number in range(3 * MAX_PAIRS):
        learned._learn((number, rng.randrange(9)), (1,))
    assert len(learned.pairs) == MAX_PAIRS
    assert min(old[0] for old in learned.pairs) == 2 * MAX_PAIRS
    learned._learn(tuple(range(9)), (1,))
    learned._learn((), (1,))
    assert len(learned.pairs) == MAX_PAIRS
