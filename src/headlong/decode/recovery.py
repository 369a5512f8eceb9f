"""Passes that may break off: where every sequence stood before, and the way back there.

A pass over many sequences may fail because of one. The others are set back to where they were and
run again, alone; so only the one that fails again is lost. Going back must restore every bit: text
depends on caches and histories agreeing.
"""

from collections.abc import Callable
from typing import NamedTuple

from headlong.decode.request import Request
from headlong.decode.sampling import Sampler
from headlong.decode.sequence import DecodingSequence
from headlong.drafters.drafter import Drafter
from headlong.errors import EngineError, HeadlongError
from headlong.ops.host_ops import PackedRows


class Mark(NamedTuple):
    """Where one sequence stands."""

    num_tokens: int
    waiting: PackedRows
    num_waiting: int
    has_begun: bool


def mark(sequence: DecodingSequence) -> Mark:
    """Note where a sequence stands."""
    waiting = sequence.backlog.rows
    return Mark(len(sequence.token_ids), waiting, len(waiting), sequence.has_begun)


def go_back(
    sequence: DecodingSequence,
    mark: Mark,
    drafter: Drafter | None,
    make_sampler: Callable[[Request], Sampler],
) -> None:
    """Bring a sequence back to where it stood; a drafter whose memory is lost is done without."""
    del sequence.token_ids[mark.num_tokens :]
    sequence.cache.rollback()  # a pass commits last, so all it ran is pending
    sequence.has_begun = mark.has_begun
    # A sampler only moves on, so a new one relives the answer.
    sampler = make_sampler(sequence.request)
    for token_id in sequence.token_ids[sampler.num_tokens :]:
        sampler.push(token_id)
    sequence.sampler = sampler
    if drafter is None or sequence.draft_state is None:
        return
    mark.waiting.truncate(mark.num_waiting)  # since then rows only came behind them
    sequence.backlog.rows = mark.waiting
    try:
        sequence.draft_state = drafter.share(sequence.draft_state, sequence.num_observed)
    except Exception as error:
        give_up_drafter(sequence, error)


def give_up_drafter(sequence: DecodingSequence, error: Exception) -> None:
    """Go on without drafts: whatever is wrong with the drafter, the answer does not need it."""
    sequence.draft_state = None
    sequence.backlog.clear()
    sequence.off_reason = f"The drafter failed: {error}"


def as_engine_error(error: Exception) -> HeadlongError:
    """Return a refusal for the request that a pass failed on, with the cause behind it."""
    if isinstance(error, HeadlongError):
        return error
    found = EngineError(
        f"The engine failed on this request: {type(error).__name__}: {error}.",
        "Other requests go on. This is a bug: please report it with the traceback.",
    )
    found.__cause__ = error
    return found
