"""Let drafters observe committed rows: at once while a sequence drafts, many together otherwise.

A head must observe every committed row before it can draft again, but it need not do so now. Rows
of an idle sequence wait in its backlog and run through the head together, which costs much less
than one by one, and nothing where drafts are never wanted again.
"""

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np

from headlong.cache.sequence_state import SequenceState
from headlong.decode.sequence import Backlog, DecodingSequence
from headlong.drafters.drafter import Drafter, DraftState, ObservedRows
from headlong.ops.host_ops import PackedRows
from headlong.ops.op_set import Array

MAX_BACKLOG = 1024
"""Rows that may wait; observing all of them at once holds others up for tens of milliseconds."""


class BacklogOwner(Protocol):
    """A sequence or kept prefix: a draft state, and the newest rows of its cache to observe."""

    token_ids: list[int]
    cache: SequenceState
    draft_state: DraftState
    backlog: Backlog


Kept: TypeAlias = tuple[DecodingSequence, int, int]
"""The rows of one sequence in a pass that will be committed, first to stop; pending as yet."""


def observe_kept(drafter: Drafter, features: Array, kept: Sequence[Kept]) -> None:
    """Let the drafter observe accepted rows; those of idle sequences join their backlogs.

    `features` is what it reads of the whole pass: (N, F). Nothing is committed yet, so a drafter
    that fails leaves every cache as it was.
    """
    due: list[tuple[BacklogOwner, ObservedRows]] = []
    waiting: list[tuple[PackedRows, int, int]] = []
    for sequence, first, stop in kept:
        backlog = sequence.backlog
        if sequence.plan.is_idle and backlog.num_rows + stop - first <= MAX_BACKLOG:
            waiting.append((backlog.rows, first, stop))
        else:
            due.append((sequence, _all_rows(sequence, features[first:stop])))
    if waiting:
        kept[0][0].backlog.host.pack_rows(features, waiting)
    _observe(drafter, due)


def catch_up(drafter: Drafter, owners: Sequence[BacklogOwner]) -> None:
    """Let the drafter observe all rows of these backlogs."""
    _observe(drafter, [(one, _all_rows(one)) for one in owners if one.backlog.num_rows])


def _observe(drafter: Drafter, due: Sequence[tuple[BacklogOwner, ObservedRows]]) -> None:
    if not due:
        return
    drafter.observe([rows for _, rows in due])
    for owner, _ in due:
        owner.backlog.clear()


def _all_rows(owner: BacklogOwner, newest: Array | None = None) -> ObservedRows:
    """Join the rows of a backlog and the newest ones, (n, F), in order."""
    waiting = owner.backlog.rows
    features = (waiting.read(),) if len(waiting) else ()
    stop = owner.cache.length
    if newest is not None:
        features = (*features, newest)
        stop += len(newest)  # those are pending
    first = stop - sum(len(part) for part in features)
    ids = np.array(owner.token_ids[first : stop + 1])
    return ObservedRows(owner.draft_state, ids[:-1], features, ids[1:])
