"""The chain: a long n-gram match first, else the head, else any match.

A long match means that the answer copies text, which n-grams draft at no cost and to any depth.
Otherwise the head is more accurate. If the head's draft ends early (parallel heads have a fixed
number of depths), an n-gram match may extend it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headlong.drafters.draft_plan import Threshold
from headlong.drafters.drafter import (
    Draft,
    Drafter,
    DraftRequest,
    DraftState,
    LazyDrafter,
    ObservedRows,
    PendingDraft,
)
from headlong.drafters.ngram import NgramDrafter, NgramMemory, propose
from headlong.models.hidden import HiddenRows
from headlong.ops.host_ops import HostOps
from headlong.ops.op_set import Array

LONG_MATCH = 6
"""Equal tokens from which on a match is preferred to the head."""


@dataclass(frozen=True, slots=True)
class ChainMemory:
    """The states of both drafters."""

    index: NgramMemory
    head: DraftState


class ChainDrafter:
    """N-gram lookup and a head in one."""

    name = "chain"

    def __init__(self, head: Drafter, host: HostOps) -> None:
        self.head = head
        self.tap_layers = head.tap_layers
        self.ngram = NgramDrafter(host, min_match=LONG_MATCH)

    def begin(self) -> ChainMemory:
        """Return the state of a new sequence."""
        return ChainMemory(self.ngram.begin(), self.head.begin())

    def features(self, hidden: HiddenRows) -> Array:
        """Return what the head reads; n-grams read tokens only."""
        return self.head.features(hidden)

    def observe(self, observed: Sequence[ObservedRows]) -> None:
        """Let the head observe the rows; the n-gram index reads the history when it drafts."""
        self.head.observe([one.of(one.state.head) for one in observed])

    def look_up(self, state: ChainMemory, history: list[int], threshold: Threshold) -> Draft:
        """Leave it to n-grams, which need no more than tokens."""
        return self.ngram.look_up(state.index, history, threshold)

    def share(self, state: ChainMemory, num_rows: int) -> ChainMemory:
        """Return a memory of the first rows of both links."""
        index = self.ngram.share(state.index, num_rows)
        return ChainMemory(index, self.head.share(state.head, num_rows))

    def num_bytes(self, state: ChainMemory, num_rows: int = 0) -> int:
        """Return the bytes of the head's caches."""
        return self.head.num_bytes(state.head, num_rows)

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Draft for every request with the first link that has something to say, then extend."""
        drafts, unserved = self._look_up_all(requests)
        from_head = self.head.draft([requests[i].of(requests[i].state.head) for i in unserved])
        for i, draft in zip(unserved, from_head, strict=True):
            drafts[i] = self._extend(draft, requests[i])
        return drafts

    def begin_draft(self, requests: Sequence[DraftRequest]) -> list[Draft | PendingDraft] | None:
        """Begin the head's drafts where no match is found; they are as long as was asked for."""
        if not isinstance(self.head, LazyDrafter):
            return None
        found, unserved = self._look_up_all(requests)
        heads = [requests[i].of(requests[i].state.head) for i in unserved]
        from_head = self.head.begin_draft(heads)
        if from_head is None:
            return None
        drafts: list[Draft | PendingDraft] = [*found]
        for i, draft in zip(unserved, from_head, strict=True):
            drafts[i] = draft
        return drafts

    def _look_up_all(self, requests: Sequence[DraftRequest]) -> tuple[list[Draft], list[int]]:
        """Return long matches, and which requests have none."""
        drafts = self.ngram.draft([request.of(request.state.index) for request in requests])
        return drafts, [i for i, draft in enumerate(drafts) if not draft.token_ids]

    def _extend(self, draft: Draft, request: DraftRequest) -> Draft:
        """Carry a short draft on with what followed the same tokens before."""
        if len(draft.token_ids) >= request.num_tokens or draft.is_uncertain:
            return draft
        return draft + propose(request.state.index, request, draft.token_ids)
