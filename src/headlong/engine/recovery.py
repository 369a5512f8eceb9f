"""Passes that may break off: where every sequence stood before, and the way back there.

A pass over many sequences may fail because of one. The others are set back to where they were and
run again, alone; so only the one that fails again is lost. Going back must restore every bit: text
depends on caches and histories agreeing.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from headlong.decode.sampling import Sampler
from headlong.decode.sequence import Backlog, DecodingSequence
from headlong.drafters.drafter import Drafter
from headlong.engine.request import Request, Running
from headlong.errors import EngineError, HeadlongError
from headlong.ops.packed_rows import PackedRows

_T = TypeVar("_T")


class Rescue(NamedTuple):
    """What it takes to bring sequences back, and to end those that cannot be."""

    drafter: Drafter | None
    make_sampler: Callable[[Request], Sampler]
    fail: Callable[[Running, Exception], None]


def run_together(
    batch: Sequence[Running], run: Callable[[Sequence[Running]], list[_T]], rescue: Rescue
) -> list[tuple[Running, _T]]:
    """Run a pass over all; where it breaks off, over each alone, and end those that fail.

    One that fails alone is run once more without its drafter: the answer does not need that.
    """
    marks = [mark(one.sequence) for one in batch]
    try:
        return list(zip(batch, run(batch), strict=True))
    except Exception as error:
        if len(batch) == 1 and batch[0].sequence.draft_state is None:
            rescue.fail(batch[0], error)
            return []
        if len(batch) == 1:
            give_up_drafter(batch[0].sequence, error)
    for running, before in zip(batch, marks, strict=True):
        sampler = rescue.make_sampler(running.request)
        go_back(running.sequence, before, rescue.drafter, sampler)
    return [done for one in batch for done in run_together([one], run, rescue)]


class Mark(NamedTuple):
    """Where one sequence stands."""

    num_tokens: int
    waiting: PackedRows
    num_waiting: int
    has_begun: bool


def mark(sequence: DecodingSequence) -> Mark:
    """Note where a sequence stands."""
    waiting = sequence.unobserved.rows
    return Mark(len(sequence.token_ids), waiting, len(waiting), sequence.has_begun)


def go_back(
    sequence: DecodingSequence, mark: Mark, drafter: Drafter | None, sampler: Sampler
) -> None:
    """Bring a sequence back to where it stood; `sampler` is a new one for its prompt.

    A drafter whose memory is lost is done without.
    """
    del sequence.token_ids[mark.num_tokens :]
    sequence.cache.rollback()  # a pass commits last, so all it ran is pending
    sequence.has_begun = mark.has_begun
    # A sampler only moves on, so a new one relives the answer.
    for token_id in sequence.token_ids[sampler.num_tokens :]:
        sampler.push(token_id)
    sequence.sampler = sampler
    if drafter is None or sequence.draft_state is None:
        return
    mark.waiting.truncate(mark.num_waiting)  # since then rows only came behind them
    sequence.unobserved.rows = mark.waiting
    try:
        sequence.draft_state = drafter.share(sequence.draft_state, sequence.num_observed)
    except Exception as error:
        give_up_drafter(sequence, error)


def give_up_drafter(sequence: DecodingSequence, error: Exception) -> None:
    """Go on without drafts: whatever is wrong with the drafter, the answer does not need it."""
    sequence.draft_state, sequence.unobserved = None, Backlog()
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
