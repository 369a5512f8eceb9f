"""The head as a drafter: a recursive head drafts depth after depth, parallel heads all at once.

After every backbone pass the head runs once over the rows that were committed, with the true hidden
states and each row's next token. That fills its own cache and leaves the state the next draft
starts from; rows made while drafting stay pending and are rolled back.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headlong.cache.sequence_state import SequenceState
from headlong.drafters.draft_plan import Threshold
from headlong.drafters.drafter import (
    NO_DRAFT,
    Draft,
    DraftRequest,
    Guess,
    ObservedRows,
    PendingDraft,
    as_draft,
)
from headlong.heads.head import Head, ParallelHeads, RecursiveHead
from headlong.models.hidden import HiddenRows
from headlong.ops.draft_blocks import DraftBlocks
from headlong.ops.op_set import Array, DraftingOps, DraftRow, LazyOps

_SHARE_TOKENS = 64
"""Over so many of its newest tokens a sequence says whether a smaller vocabulary suits it."""


@dataclass(slots=True)
class HeadMemory:
    """What a head remembers of one sequence."""

    cache: SequenceState
    state: Array | None = None
    """Where the next draft starts: (H,) for a recursive head, (depths, H) for parallel ones."""
    share: float = 1.0
    """The share of its newest tokens that the head's smaller vocabulary has, if it has one."""


class HeadDrafter:
    """What drafters with either kind of head have in common."""

    name = "head"

    def __init__(self, head: Head) -> None:
        self.head = head
        self.tap_layers = head.tap_layers

    def begin(self) -> HeadMemory:
        """Return the memory for a new sequence."""
        return HeadMemory(self.head.make_cache())

    def features(self, hidden: HiddenRows) -> Array:
        """Return what the head reads of the rows of a pass."""
        return self.head.features(hidden)

    def look_up(self, state: HeadMemory, history: list[int], threshold: Threshold) -> Draft:
        """Draft nothing: every token takes a model."""
        return NO_DRAFT

    def share(self, state: HeadMemory, num_rows: int) -> HeadMemory:
        """Return a memory of the first rows; the next row observed says where a draft starts."""
        return HeadMemory(state.cache.fork(num_rows, self.head.make_cache), share=state.share)

    def num_bytes(self, state: HeadMemory, num_rows: int = 0) -> int:
        """Return the bytes of the head's cache of this sequence."""
        return state.cache.bytes_for(num_rows)

    def _join(self, observed: Sequence[ObservedRows]) -> Array:
        """Put the features of all sequences under one another: (N, F)."""
        return self.head.ops.join([part for one in observed for part in one.features])


class RecursiveDrafter(HeadDrafter):
    """Drafts with a head that runs again for every depth."""

    head: RecursiveHead

    def __init__(self, head: RecursiveHead) -> None:
        super().__init__(head)
        self._ops = head.ops if isinstance(head.ops, DraftingOps) else None
        self._lazy_ops = head.ops if isinstance(head.ops, LazyOps) else None
        fewer = head.with_fewer_tokens()
        heads = [head] if fewer is None else [head, fewer]
        self._heads = [(one, one.draft_blocks()) for one in heads]
        """The head, and the same with a smaller vocabulary if it has one."""

    def observe(self, observed: Sequence[ObservedRows]) -> None:
        """Run the head over the committed rows of all sequences in one go."""
        caches = [one.state.cache for one in observed]
        next_ids = [one.next_ids for one in observed]
        for one, state in zip(
            observed, self.head.follow(self._join(observed), next_ids, caches), strict=True
        ):
            one.state.cache.commit(len(one.next_ids))
            one.state.state = state
            if self.head.fewer_tokens is not None:
                newest = one.next_ids[-_SHARE_TOKENS:]
                weight = len(newest) / _SHARE_TOKENS
                share = self.head.fewer_tokens.share(newest)
                one.state.share += weight * (share - one.state.share)

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Draft for every request; all depths in one call where that can be done."""
        drafts = [NO_DRAFT] * len(requests)
        for head, blocks, own in self._by_head(requests):
            found = self._guess(head, blocks, [requests[i] for i in own])
            for i, guesses in zip(own, found, strict=True):
                drafts[i] = as_draft(guesses, self.name, requests[i].plan.threshold(self.name))
        return drafts

    def begin_draft(self, requests: Sequence[DraftRequest]) -> list[Draft | PendingDraft] | None:
        """Begin drafts on a backend that computes them later."""
        if self._lazy_ops is None or any(one.guesser.rule() is None for one in requests):
            return None
        drafts: list[Draft | PendingDraft] = [NO_DRAFT] * len(requests)
        for _, blocks, own in self._by_head(requests):
            rows = self._draft_rows([requests[i] for i in own])
            begun = self._lazy_ops.begin_draft(blocks, rows)
            for i, draft in zip(own, begun, strict=True):
                requests[i].state.cache.rollback()
                drafts[i] = PendingDraft(draft, requests[i].num_tokens, self.name)
        return drafts

    def _by_head(
        self, requests: Sequence[DraftRequest]
    ) -> list[tuple[RecursiveHead, DraftBlocks, list[int]]]:
        """Return which requests that can be drafted for use which of the heads."""
        used: list[tuple[RecursiveHead, DraftBlocks, list[int]]] = [
            (head, blocks, []) for head, blocks in self._heads
        ]
        for i, request in enumerate(requests):
            if request.num_tokens and request.state.state is not None:
                chosen = self._head_for(request.state)
                next(own for head, _, own in used if head is chosen).append(i)
        return [one for one in used if one[2]]

    def _head_for(self, memory: HeadMemory) -> RecursiveHead:
        """Return the head whose vocabulary gives this sequence more tokens per second."""
        fewer = self.head.fewer_tokens
        is_worth_it = fewer is not None and memory.share >= fewer.least_share
        return self._heads[-1][0] if is_worth_it else self.head

    def _guess(
        self, head: RecursiveHead, blocks: DraftBlocks, requests: Sequence[DraftRequest]
    ) -> list[list[Guess]]:
        """Guess for requests of one head, in one call of the backend or depth by depth."""
        try:
            return self._guess_at_once(blocks, requests) or self._guess_by_depth(head, requests)
        finally:  # also where one guess fails: the others' memories must stay as they were
            for request in requests:
                request.state.cache.rollback()

    def _guess_by_depth(
        self, head: RecursiveHead, requests: Sequence[DraftRequest]
    ) -> list[list[Guess]]:
        """Guess depth by depth; a sequence drops out once it has what it asked for."""
        guesses: list[list[Guess]] = [[] for _ in requests]
        active = list(range(len(requests)))
        states = {i: requests[i].state.state for i in active}
        while active:
            carried = head.ops.stack([states[i] for i in active])
            logits = head.logits(carried)  # (N, V_draft)
            for row, i in zip(logits, active, strict=True):
                drafted = [guess.token_id for guess in guesses[i]]
                guesses[i].append(requests[i].guesser.guess(row, head.vocabulary, drafted))
            active = [i for i in active if can_extend(guesses[i], requests[i])]
            if active:
                newest = [np.array([guesses[i][-1].token_id]) for i in active]
                caches = [requests[i].state.cache for i in active]
                carried = head.ops.stack([states[i] for i in active])
                carried = head.step(carried, newest, caches)
                states.update(zip(active, carried, strict=True))
        return guesses

    def _guess_at_once(
        self, blocks: DraftBlocks, requests: Sequence[DraftRequest]
    ) -> list[list[Guess]] | None:
        """Let the backend make the whole draft; None where it cannot, or logits are not finite.

        It makes the very guesses of `_guess_by_depth`, only sooner. The logits that are not finite
        are left to that one to complain about.
        """
        if any(request.guesser.rule() is None for request in requests):
            return None
        drafted = self._draft_at_once(blocks, self._draft_rows(requests))
        if drafted is None:
            for request in requests:
                request.state.cache.rollback()
            return None
        return [
            [Guess(token_id, prob) for token_id, prob in zip(token_ids, probs, strict=True)]
            for token_ids, probs in drafted
        ]

    def _draft_at_once(
        self, blocks: DraftBlocks, rows: Sequence[DraftRow]
    ) -> list[tuple[list[int], list[float]]] | None:
        if self._ops is not None:
            return self._ops.draft(blocks, rows)
        if self._lazy_ops is None:
            return None
        drafted = self._lazy_ops.collect(self._lazy_ops.begin_draft(blocks, rows))
        is_whole = all(math.isfinite(prob) for _, probs in drafted for prob in probs)
        return drafted if is_whole else None

    def _draft_rows(self, requests: Sequence[DraftRequest]) -> list[DraftRow]:
        """Return what a backend must know to draft for requests whose rules are known to it."""
        rules = [request.guesser.rule() for request in requests]
        thresholds = [request.plan.threshold(self.name) for request in requests]
        return [
            DraftRow(
                state=request.state.state,
                layer=request.state.cache.layers[0],
                first_position=request.state.cache.append(request.num_tokens - 1),
                num_tokens=request.num_tokens,
                extend=threshold.extend,
                calibration=threshold.calibration,
                rule=rule,
                token_position=len(request.history),
            )
            for request, threshold, rule in zip(requests, thresholds, rules, strict=True)
            if rule is not None
        ]


class ParallelDrafter(HeadDrafter):
    """Drafts with one head per depth, all reading the same backbone state."""

    head: ParallelHeads

    def __init__(self, heads: ParallelHeads) -> None:
        super().__init__(heads)

    def observe(self, observed: Sequence[ObservedRows]) -> None:
        """Run every depth's block over the committed rows of all sequences."""
        caches = [one.state.cache for one in observed]
        sizes = [len(one.next_ids) for one in observed]
        states = self.head.states(self._join(observed), caches, sizes)  # (depths, N, H)
        for one, last in zip(observed, _last_rows(observed), strict=True):
            one.state.cache.commit(one.state.cache.num_pending)
            one.state.state = states[:, last]

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Read one guess per depth off the state left by `observe`."""
        return [self._draft_one(request) for request in requests]

    def _draft_one(self, request: DraftRequest) -> Draft:
        guesses: list[Guess] = []
        if request.state.state is None:
            return NO_DRAFT
        for depth in range(1, min(request.num_tokens, self.head.num_depths) + 1):
            logits = self.head.logits(request.state.state[depth - 1 : depth], depth)[
                0
            ]  # (V_draft,)
            drafted = [guess.token_id for guess in guesses]
            guesses.append(request.guesser.guess(logits, self.head.vocabulary, drafted))
            if not can_extend(guesses, request):
                break
        return as_draft(guesses, self.name, request.plan.threshold(self.name))


def can_extend(guesses: Sequence[Guess], request: DraftRequest) -> bool:
    """Tell whether one more token is asked for, and likely enough to pay for a step."""
    is_sure = request.plan.threshold("head").can_extend(guess.prob for guess in guesses)
    return is_sure and len(guesses) < request.num_tokens


def _last_rows(observed: Sequence[ObservedRows]) -> list[int]:
    """Return, for every sequence, the index of its last row among the joined ones."""
    ends = np.cumsum([len(one.next_ids) for one in observed])
    return [int(end) - 1 for end in ends]
