"""Keep drafters' memories up to date: at once while drafts are wanted, in larger bites otherwise.

A head must see every committed row before it can draft again, but it need not see it now. Rows of
a sequence that rests wait, and run through the head together, which costs much less than one by
one, and nothing where drafts are never wanted again. Drafting starts again from full memory.
"""

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np

from headlong.arrays import FloatArray
from headlong.cache.kv_cache import KVCache
from headlong.decode.sequence import Backlog, DecodingSequence
from headlong.drafters.drafter import Drafter, DraftState, Settled
from headlong.models.hidden import join_rows
from headlong.ops.packed_rows import PackedRows, pack_rows

MAX_UNOBSERVED = 1024
"""Rows that may wait; looking at all of them at once holds others up for tens of milliseconds."""


class Listener(Protocol):
    """A drafter's memory of some tokens, and the rows that wait for it: the newest in the cache."""

    token_ids: list[int]
    cache: KVCache
    draft_state: DraftState
    unobserved: Backlog


Kept: TypeAlias = tuple[DecodingSequence, int, int]
"""The rows of one sequence in a pass that stand: first to stop."""


def settle(drafter: Drafter, features: FloatArray, kept: Sequence[Kept]) -> None:
    """Tell the drafter what was just committed; rows of resting sequences wait.

    `features` is what it reads of the whole pass: (N, F).
    """
    due: list[tuple[Listener, Settled]] = []
    waiting: list[tuple[PackedRows, int, int]] = []
    for sequence, first, stop in kept:
        rows = sequence.unobserved.rows
        if sequence.plan.is_idle and len(rows) + stop - first <= MAX_UNOBSERVED:
            waiting.append((rows, first, stop))
        else:
            due.append((sequence, _all_rows(sequence, features[first:stop])))
    if waiting:
        pack_rows(features, waiting)
    _observe(drafter, due)


def catch_up(drafter: Drafter, listeners: Sequence[Listener]) -> None:
    """Let the drafter observe whatever waits for these memories."""
    _observe(drafter, [(one, _all_rows(one)) for one in listeners if one.unobserved.num_rows])


def _observe(drafter: Drafter, due: Sequence[tuple[Listener, Settled]]) -> None:
    if not due:
        return
    drafter.observe([rows for _, rows in due])
    for listener, _ in due:
        listener.unobserved.clear()


def _all_rows(listener: Listener, newest: FloatArray | None = None) -> Settled:
    """Put the waiting rows of a sequence and its newest ones, (n, F), under one another."""
    waiting = listener.unobserved.rows
    parts = [waiting.read()] if len(waiting) else []
    features = join_rows(parts if newest is None else [*parts, newest])
    stop = listener.cache.length
    ids = np.array(listener.token_ids[stop - len(features) : stop + 1])
    return Settled(listener.draft_state, ids[:-1], features, ids[1:])
