"""Keep drafters' memories up to date: at once while drafts are wanted, in larger bites otherwise.

A head must see every committed row before it can draft again, but it need not see it now. Rows of
a sequence that rests wait, and run through the head together, which costs much less than one by
one, and nothing where drafts are never wanted again. Drafting starts again from full memory.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from headlong.decode.sequence import Backlog, DecodingSequence
from headlong.drafters.drafter import Drafter, Settled
from headlong.models.hidden import join_rows

MAX_UNOBSERVED = 512
"""Rows that may wait; their hidden states take about half as much memory as their cache entries."""


def settle(drafter: Drafter, settled: Sequence[tuple[DecodingSequence, Settled]]) -> None:
    """Tell the drafter what was committed; rows of resting sequences wait."""
    due: list[Settled] = []
    for sequence, rows in settled:
        num_waiting = sequence.unobserved.num_rows + len(rows.next_ids)
        if sequence.is_resting and num_waiting <= MAX_UNOBSERVED:
            sequence.unobserved.add(rows)
        else:
            due.append(_all_rows(sequence, rows))
    if due:
        drafter.observe(due)


def catch_up(drafter: Drafter, sequences: Sequence[DecodingSequence]) -> None:
    """Let the drafter observe whatever waits of these sequences."""
    due = [_all_rows(sequence) for sequence in sequences if sequence.unobserved.parts]
    if due:
        drafter.observe(due)


def _all_rows(sequence: DecodingSequence, newest: Settled | None = None) -> Settled:
    """Put the waiting rows of a sequence and its newest ones under one another."""
    parts = [*sequence.unobserved.parts, *([] if newest is None else [newest])]
    sequence.unobserved = Backlog()
    if len(parts) == 1:
        return replace(parts[0], state=sequence.draft_state)
    return Settled(
        sequence.draft_state,
        np.concatenate([part.token_ids for part in parts]),
        join_rows([part.hidden for part in parts]),
        np.concatenate([part.next_ids for part in parts]),
    )
