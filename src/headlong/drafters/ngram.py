"""N-gram lookup: draft the tokens that followed an earlier occurrence of the last tokens.

Its cost is negligible, and it is accurate where an answer copies: retrieval, edits, code, JSON. The
drafter keeps an index of prompt and answer per sequence, finds the longest earlier match of the
last tokens, and proposes the tokens after it. Replacements that the answer has made in earlier
copies are applied to the proposal.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headlong.drafters.draft_plan import Threshold
from headlong.drafters.drafter import (
    NGRAM,
    NO_DRAFT,
    Draft,
    DraftRequest,
    ObservedRows,
    forced_draft,
)
from headlong.drafters.replacements import Replacements
from headlong.models.hidden import HiddenRows
from headlong.ops.host_ops import HostOps, TokenIndex
from headlong.ops.op_set import Array

MIN_MATCH = 2
"""Shorter matches are mostly coincidence."""

COPY_MATCH = 4
"""Equal tokens from which on an idle sequence drafts a token: shorter matches hardly ever pay
beside many other requests."""


class Match(NamedTuple):
    """An earlier occurrence of the history's last `length` tokens, ending before `end`."""

    end: int
    length: int

    @property
    def prob(self) -> float:
        """A longer match is more likely to continue."""
        return self.length / (self.length + 2.0)


@dataclass(frozen=True, slots=True)
class NgramMemory:
    """The state of one sequence."""

    index: TokenIndex
    replacements: Replacements = field(default_factory=Replacements)


class NgramDrafter:
    """Drafts by copying what followed the longest earlier match."""

    name = NGRAM
    tap_layers: tuple[int, ...] = ()

    def __init__(self, host: HostOps, min_match: int = MIN_MATCH) -> None:
        self._host = host
        self.min_match = min_match

    def begin(self) -> NgramMemory:
        """Return the empty memory of a new sequence."""
        return NgramMemory(self._host.make_token_index())

    def features(self, hidden: HiddenRows) -> Array:
        """Return nothing: the history comes with every request."""
        return hidden.nothing

    def observe(self, observed: Sequence[ObservedRows]) -> None:
        """Need nothing from the backbone: the history comes with every request."""

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Copy what followed the longest match, for every request that has one."""
        return [self._draft_one(request) for request in requests]

    def _draft_one(self, request: DraftRequest) -> Draft:
        found = propose(request.state, request, request.forced, self.min_match)
        return forced_draft(request.forced) + found if found.token_ids else NO_DRAFT

    def look_up(self, state: NgramMemory, history: list[int], threshold: Threshold) -> Draft:
        """Copy the token behind a match that is long, and likely enough to go on."""
        found = state.index.find(history, COPY_MATCH, ())
        if found is None:
            return NO_DRAFT
        match = Match(*found)
        if not threshold.count_kept((match.prob,)):
            return NO_DRAFT
        return Draft((history[match.end],), (match.prob,), (NGRAM,))

    def share(self, state: NgramMemory, num_rows: int) -> NgramMemory:
        """Return an empty memory: the history comes whole with the first request."""
        return self.begin()

    def num_bytes(self, state: NgramMemory, num_rows: int = 0) -> int:
        """Return 0: there are no caches."""
        return 0


def propose(
    memory: NgramMemory, request: DraftRequest, assumed: Sequence[int], min_match: int = MIN_MATCH
) -> Draft:
    """Copy what followed the longest match of the history and what is assumed behind it.

    The assumed tokens are part of what was asked for.
    """
    history = request.history
    found = memory.index.find(history, min_match, assumed)
    if found is None:
        return NO_DRAFT
    match = Match(*found)
    if not assumed:
        memory.replacements.observe(history, match.end)
    wanted = [match.prob] * (request.num_tokens - len(assumed))
    num_tokens = request.plan.threshold(NGRAM).count_kept(wanted)
    copied = memory.replacements.copy(history, assumed, match.end, num_tokens)
    return Draft(tuple(copied), (match.prob,) * len(copied), (NGRAM,) * len(copied))
