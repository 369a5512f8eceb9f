"""The assistant as a drafter: it reads the backbone's own keys and values, and keeps none.

What it remembers of a sequence is the backbone's newest hidden row. All else it finds in the
backbone's state of the sequence, which every request for a draft brings along: so preemption,
shared prefixes and batches are that state's business alone, and a prompt costs the assistant
nothing. Nothing is written anywhere while it drafts.
"""

from collections.abc import Sequence

import numpy as np

from headlong.drafters.drafter import NO_DRAFT, Draft, DraftRequest, Guess, ObservedRows, as_draft
from headlong.drafters.head_drafter import HeadDrafter, can_extend
from headlong.heads.head import AssistantHead
from headlong.ops.op_set import Array


class AssistantDrafter(HeadDrafter):
    """Drafts with a head that reads the backbone's keys and values."""

    head: AssistantHead

    def __init__(self, head: AssistantHead) -> None:
        super().__init__(head)

    def observe(self, observed: Sequence[ObservedRows]) -> None:
        """Remember the newest row of every sequence."""
        ops = self.head.ops
        for one in observed:
            one.state.cache.append(len(one.next_ids))
            one.state.cache.commit(len(one.next_ids))
            # Taken out: a view would keep all rows of the pass.
            newest = ops.join([one.features[-1][-1:]])
            one.state.state = ops.rows(newest, [0])[0]

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Draft for every request, depth by depth."""
        drafts = [NO_DRAFT] * len(requests)
        ready = [
            i
            for i, request in enumerate(requests)
            if request.num_tokens and request.state.state is not None
        ]
        if ready:
            found = self._guess([requests[i] for i in ready])
            for i, guesses in zip(ready, found, strict=True):
                drafts[i] = as_draft(guesses, self.name, requests[i].plan.threshold(self.name))
        return drafts

    def _guess(self, requests: Sequence[DraftRequest]) -> list[list[Guess]]:
        """Guess depth by depth; a sequence drops out once it has what it asked for."""
        guesses: list[list[Guess]] = [[] for _ in requests]
        active = list(range(len(requests)))
        states = {i: requests[i].state.state for i in active}
        tokens = {i: requests[i].history[-1] for i in active}
        while active:
            result = self._step([requests[i] for i in active], states, tokens, active)
            logits = self.head.logits(result)  # (N, V)
            for row, i in zip(logits, active, strict=True):
                drafted = [guess.token_id for guess in guesses[i]]
                guesses[i].append(requests[i].guesser.guess(row, self.head.vocabulary, drafted))
                tokens[i] = guesses[i][-1].token_id
            going_on = [n for n, i in enumerate(active) if can_extend(guesses[i], requests[i])]
            if going_on:
                carried = self.head.carry(self.head.ops.rows(result, going_on))
                states = {active[n]: row for n, row in zip(going_on, carried, strict=True)}
            active = [active[n] for n in going_on]
        return guesses

    def _step(
        self,
        requests: Sequence[DraftRequest],
        states: dict[int, Array],
        tokens: dict[int, int],
        active: Sequence[int],
    ) -> Array:
        caches = [request.cache for request in requests if request.cache is not None]
        assert len(caches) == len(requests), "an assistant reads the backbone's state"
        # The newest token of a history has no row yet; the last row is that of the one before it.
        positions = [len(request.history) - 2 for request in requests]
        state = self.head.ops.stack([states[i] for i in active])
        return self.head.step(state, np.array([tokens[i] for i in active]), caches, positions)
