"""Fakes one can compute in one's head."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from headlong.arrays import BoolArray, FloatArray, IntArray
from headlong.cache.sequence_state import SequenceState
from headlong.config import SamplingParams
from headlong.decode.draft_backlog import observe_kept
from headlong.decode.request import Request
from headlong.decode.round import RoundResult, run_round
from headlong.decode.sampling import Sampler
from headlong.decode.sequence import Backlog, DecodingSequence
from headlong.drafters.draft_plan import DraftPlan, Threshold
from headlong.drafters.drafter import Draft, Drafter, DraftRequest, Guess, ObservedRows
from headlong.errors import HeadlongError
from headlong.models.hidden import HiddenRows
from headlong.models.transformer import Backbone
from headlong.ops.host_ops import HostOps
from headlong.ops.native.host import NativeHost
from headlong.ops.op_set import Array


def run_rows(
    drafter: Drafter,
    sequence: DecodingSequence,
    num_rows: int,
    num_others: int = 0,
    *,
    commits: bool = True,
) -> None:
    """Run the next rows of a sequence in a pass with others; their numbers tell their places."""
    first = sequence.cache.append(num_rows)
    places: FloatArray = np.arange(first - num_others, first + num_rows, dtype=np.float32)
    observe_kept(drafter, places[:, None], [(sequence, num_others, num_others + num_rows)])
    if commits:
        sequence.cache.commit(num_rows)


def make_sequence(
    token_ids: Sequence[int],
    cache: SequenceState,
    draft_state: object = None,
    vocab_size: int = 96,
    host: HostOps | None = None,
) -> DecodingSequence:
    """Return a greedy sequence none of whose tokens has run."""
    request = Request(tuple(token_ids))
    sampler = Sampler(SamplingParams(), token_ids, vocab_size)
    backlog = Backlog(NativeHost() if host is None else host)
    return DecodingSequence(request, list(token_ids), cache, sampler, backlog, draft_state)


def play_round(
    batch: Sequence[DecodingSequence],
    plans: Sequence[DraftPlan],
    backbone: Backbone,
    drafter: Drafter | None,
    max_rows: int | None = None,
) -> list[RoundResult]:
    """Make one round by these plans."""
    for sequence, plan in zip(batch, plans, strict=True):
        sequence.plan = plan
    return run_round(batch, backbone, drafter, max_rows)


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

    def features(self, hidden: HiddenRows) -> Array:
        """Take any feature that has as many rows."""
        return hidden.raw if hidden.taps is None else hidden.taps

    def observe(self, observed: Sequence[ObservedRows]) -> None:
        """Note how many rows were observed."""
        self.num_settled += [len(one.next_ids) for one in observed]

    def draft(self, asks: Sequence[DraftRequest]) -> list[Draft]:
        """Draft the true continuation, spoiled where told."""
        return [self._draft_one(len(ask.history), ask.num_tokens) for ask in asks]

    def look_up(self, state: str, history: list[int], threshold: Threshold) -> Draft:
        """Copy nothing."""
        return Draft()

    def share(self, state: str, num_rows: int) -> str:
        """Remember nothing again."""
        return state

    def num_bytes(self, state: str, num_rows: int = 0) -> int:
        """Take no memory."""
        return 0

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

    def rule(self) -> None:
        """Say that only `guess` knows how it guesses."""


@dataclass(frozen=True)
class Phrases:
    """A grammar of a few phrases: nothing else may be said. Fits `decode.constraint.Grammar`."""

    phrases: Sequence[tuple[int, ...]]
    eos_id: int
    vocab_size: int
    source: str = ""
    warnings: tuple[str, ...] = ()

    def begin(self) -> "PhraseState":
        """Return the state of an answer that has said nothing yet."""
        return PhraseState(self)

    def begin_spread(self) -> "PhraseState":
        """Return the same: there is no white space to be set."""
        return self.begin()


@dataclass
class PhraseState:
    """What of the phrases has been said."""

    grammar: Phrases
    said: tuple[int, ...] = ()
    lost: HeadlongError | None = None

    def mask(self) -> BoolArray:
        """Return what may come next."""
        mask = self.mask_after(())
        assert mask is not None
        return mask

    def mask_after(self, token_ids: Sequence[int]) -> BoolArray | None:
        """Return what may come after `token_ids`."""
        said = (*self.said, *token_ids)
        while said[-2:] == (self.grammar.eos_id,) * 2:  # behind the end there is only the end
            said = said[:-1]
        ended = [(*phrase, self.grammar.eos_id) for phrase in self.grammar.phrases]
        allowed = [p[len(said)] for p in ended if p[: len(said)] == said and len(p) > len(said)]
        if not allowed and said not in ended:
            return None
        mask = np.zeros(self.grammar.vocab_size, dtype=np.bool_)
        mask[allowed or [self.grammar.eos_id]] = True
        return mask

    def push(self, token_id: int) -> None:
        """Say one more token."""
        assert self.mask()[token_id], f"{token_id} after {self.said} is in no phrase"
        self.said = (*self.said, token_id)

    def forced(self) -> Sequence[int]:
        """Return what all phrases that are still possible have in common."""
        forced: list[int] = []
        while True:
            mask = self.mask_after(forced)
            if mask is None or mask.sum() != 1 or int(mask.argmax()) == self.grammar.eos_id:
                return forced
            forced.append(int(mask.argmax()))

    def accepts(self, token_id: int) -> bool:
        """Tell whether a token may come next: there is one way to cut a phrase."""
        return self.num_allowed((token_id,)) == 1

    def num_allowed(self, token_ids: Sequence[int]) -> int:
        """Return how many of the leading tokens may be said."""
        for place, token_id in enumerate(token_ids):
            mask = self.mask_after(token_ids[:place])
            if mask is None or not mask[token_id]:
                return place
        return len(token_ids)
