"""Recovery: restore sequences to their state before a pass that failed.

A pass over many sequences may fail because of one. All are restored and run again one by one, so
only the one that fails again ends. Every bit must be as it was: text depends on caches and
histories agreeing.
"""

from collections.abc import Callable
from typing import NamedTuple

from headlong.decode.request import Request
from headlong.decode.sampling import Sampler
from headlong.decode.sequence import DecodingSequence
from headlong.drafters.drafter import Drafter
from headlong.errors import EngineError, HeadlongError
from headlong.ops.host_ops import PackedRows


class Savepoint(NamedTuple):
    """What it takes to restore one sequence."""

    num_tokens: int
    waiting: PackedRows
    num_waiting: int
    has_begun: bool


def save(sequence: DecodingSequence) -> Savepoint:
    """Record the state of a sequence before a pass."""
    waiting = sequence.backlog.rows
    return Savepoint(len(sequence.token_ids), waiting, len(waiting), sequence.has_begun)


def restore(
    sequence: DecodingSequence,
    savepoint: Savepoint,
    drafter: Drafter | None,
    make_sampler: Callable[[Request], Sampler],
) -> None:
    """Restore a sequence; it goes on without drafts where its draft state cannot be restored."""
    del sequence.token_ids[savepoint.num_tokens :]
    sequence.cache.rollback()  # a pass commits last, so all it ran is pending
    sequence.has_begun = savepoint.has_begun
    # A sampler cannot go back, so a new one replays the answer.
    sampler = make_sampler(sequence.request)
    for token_id in sequence.token_ids[sampler.num_tokens :]:
        sampler.push(token_id)
    sequence.sampler = sampler
    if drafter is None or sequence.draft_state is None:
        return
    savepoint.waiting.truncate(savepoint.num_waiting)  # since then rows only came behind them
    sequence.backlog.rows = savepoint.waiting
    try:
        sequence.draft_state = drafter.share(sequence.draft_state, sequence.num_observed)
    except Exception as error:
        disable_drafter(sequence, error)


def disable_drafter(sequence: DecodingSequence, error: Exception) -> None:
    """Go on without drafts: whatever is wrong with the drafter, the answer does not need it."""
    sequence.draft_state = None
    sequence.backlog.clear()
    sequence.off_reason = f"The drafter failed: {error}"


def as_engine_error(error: Exception) -> HeadlongError:
    """Return the error a request ends with when a pass failed on it; its cause is chained."""
    if isinstance(error, HeadlongError):
        return error
    found = EngineError(
        f"The engine failed on this request: {type(error).__name__}: {error}.",
        "Other requests go on. This is a bug: please report it with the traceback.",
    )
    found.__cause__ = error
    return found
