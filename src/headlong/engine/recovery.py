"""Where a sequence stood before a pass, and the way back there when the pass broke off.

A pass over many sequences may fail because of one. The others are set back to where they were and
run again, alone; so only the one that fails again is lost. Going back must restore every bit: text
depends on caches and histories agreeing.
"""

from dataclasses import dataclass

from headlong.decode.sampling import Sampler
from headlong.decode.sequence import Backlog, DecodingSequence
from headlong.drafters.drafter import Drafter
from headlong.errors import EngineError, HeadlongError


@dataclass(frozen=True, slots=True)
class Mark:
    """Where one sequence stands."""

    num_tokens: int
    num_rows: int
    num_observed: int
    unobserved: Backlog
    num_unobserved_parts: int
    """How many parts the backlog had; it may grow on, or be given up for a new one."""
    has_begun: bool


def mark(sequence: DecodingSequence) -> Mark:
    """Note where a sequence stands."""
    return Mark(
        len(sequence.token_ids),
        sequence.cache.length,
        sequence.num_observed,
        sequence.unobserved,
        len(sequence.unobserved.parts),
        sequence.has_begun,
    )


def go_back(
    sequence: DecodingSequence, mark: Mark, drafter: Drafter | None, sampler: Sampler
) -> None:
    """Bring a sequence back to where it stood; `sampler` is a new one for its prompt.

    A drafter whose memory is lost is done without.
    """
    del sequence.token_ids[mark.num_tokens :]
    sequence.cache.truncate(mark.num_rows)
    sequence.has_begun = mark.has_begun
    sequence.unobserved = mark.unobserved.first(mark.num_unobserved_parts)
    # A sampler only moves on, so a new one relives the answer.
    for token_id in sequence.token_ids[sampler.num_tokens :]:
        sampler.push(token_id)
    sequence.sampler = sampler
    if drafter is None or sequence.draft_state is None:
        return
    try:
        sequence.draft_state = drafter.share(sequence.draft_state, mark.num_observed)
    except Exception as error:  # whatever is wrong with it, the answer does not need it
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
