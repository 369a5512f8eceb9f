"""The chain: long matches first, then the head, then any match; matches extend short drafts."""

from collections.abc import Sequence
from dataclasses import dataclass

from fakes import ArgmaxGuesser
from headlong.drafters.chain import LONG_MATCH, ChainDrafter
from headlong.drafters.draft_plan import DraftPlan, Threshold
from headlong.drafters.drafter import Draft, DraftRequest, ObservedRows
from headlong.models.hidden import HiddenRows
from headlong.ops.native.host import NativeHost
from headlong.ops.op_set import Array


@dataclass
class FixedHead:
    """Always drafts the same tokens, however many are asked for."""

    token_ids: tuple[int, ...]
    name: str = "head"
    tap_layers: tuple[int, ...] = (1, 2)
    num_observed: int = 0

    def begin(self) -> str:
        """Return a memory that is easy to recognise."""
        return "head's memory"

    def features(self, hidden: HiddenRows) -> Array:
        """Read the final hidden state."""
        return hidden.normed

    def observe(self, settled: Sequence[ObservedRows]) -> None:
        """Count, and check that the own memory comes back."""
        assert all(one.state == "head's memory" for one in settled)
        self.num_observed += len(settled)

    def look_up(self, state: str, history: list[int], threshold: Threshold) -> Draft:
        """Copy nothing."""
        return Draft()

    def share(self, state: str, num_rows: int) -> str:
        """Return the same memory."""
        return state

    def num_bytes(self, state: str, num_rows: int = 0) -> int:
        """Count the rows."""
        return num_rows

    def draft(self, asks: Sequence[DraftRequest]) -> list[Draft]:
        """Draft the fixed tokens."""
        assert all(ask.state == "head's memory" for ask in asks)
        return [
            Draft(
                self.token_ids[: ask.num_tokens],
                (0.5,) * min(ask.num_tokens, len(self.token_ids)),
                ("head",) * min(ask.num_tokens, len(self.token_ids)),
            )
            for ask in asks
        ]


def draft(head_ids: tuple[int, ...], histories: list[list[int]], num_tokens: int) -> list[Draft]:
    """Draft once for several sequences."""
    chain = ChainDrafter(FixedHead(head_ids), NativeHost())
    asks = [
        DraftRequest(chain.begin(), history, DraftPlan(num_tokens), ArgmaxGuesser())
        for history in histories
    ]
    return chain.draft(asks)


LONG_COPY = [*range(10, 10 + LONG_MATCH), 3, 4, 5, *range(10, 10 + LONG_MATCH)]
SHORT_COPY = [10, 11, 3, 4, 5, 10, 11]
NO_COPY = [1, 2, 3]


def test_long_match_goes_before_the_head() -> None:
    assert draft((7, 8, 9), [LONG_COPY], 3)[0].sources == ("ngram",) * 3


def test_head_goes_before_a_short_match() -> None:
    found = draft((7, 8, 9), [SHORT_COPY], 3)[0]
    assert (found.token_ids, found.sources) == ((7, 8, 9), ("head",) * 3)


def test_silent_head_leaves_it_to_any_match() -> None:
    assert draft((), [SHORT_COPY], 3)[0].token_ids == (3, 4, 5)


def test_match_behind_a_short_draft_extends_it() -> None:
    # The head says 3; "11 3" stood before, followed by 4 5.
    found = draft((3,), [SHORT_COPY], 3)[0]
    assert found.token_ids == (3, 4, 5)
    assert found.sources == ("head", "ngram", "ngram")


def test_each_sequence_gets_its_own_link() -> None:
    sources = [found.sources[:1] for found in draft((7,), [NO_COPY, LONG_COPY], 1)]
    assert sources == [("head",), ("ngram",)]


def test_head_sees_what_was_settled() -> None:
    head = FixedHead(())
    chain = ChainDrafter(head, NativeHost())
    assert chain.tap_layers == (1, 2)
    memory = chain.begin()
    chain.observe([ObservedRows(memory, None, None, None)])  # type: ignore[arg-type]  # only passed on
    assert head.num_observed == 1
