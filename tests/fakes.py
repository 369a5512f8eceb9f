"""Fakes one can compute in one's head."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from headlong.arrays import FloatArray, IntArray
from headlong.drafters.drafter import Draft, DraftAsk, Guess, Settled


@dataclass
class ScriptedDrafter:
    """Knows the whole true text and drafts from it, spoiling chosen absolute positions.

    `spoiled` positions get a token that is off by one, so exactly there a draft is refused.
    """

    truth: Sequence[int]
    vocab_size: int
    spoiled: frozenset[int] = frozenset()
    name: str = "scripted"
    tap_layers: tuple[int, ...] = ()
    num_settled: list[int] = field(default_factory=list)
    """Rows of each observation, as they came."""

    def begin(self) -> str:
        """Remember nothing."""
        return "nothing"

    def observe(self, settled: Sequence[Settled]) -> None:
        """Note how many rows were settled."""
        self.num_settled += [len(one.next_ids) for one in settled]

    def draft(self, asks: Sequence[DraftAsk]) -> list[Draft]:
        """Draft the true continuation, spoiled where told."""
        return [self._draft_one(len(ask.history), ask.num_tokens) for ask in asks]

    def _draft_one(self, position: int, num_tokens: int) -> Draft:
        true_ids = self.truth[position : position + num_tokens]
        ids = tuple(
            (token_id + 1) % self.vocab_size if position + offset in self.spoiled else token_id
            for offset, token_id in enumerate(true_ids)
        )
        return Draft(ids, (1.0,) * len(ids), (self.name,) * len(ids))


class ArgmaxGuesser:
    """Guesses the largest logit, without noise or history."""

    def guess(
        self, logits: FloatArray, vocabulary: IntArray | None, drafted: Sequence[int]
    ) -> Guess:
        """Return the argmax as a backbone id, fully sure of it."""
        column = int(logits.argmax())
        return Guess(column if vocabulary is None else int(vocabulary[column]), 1.0)
