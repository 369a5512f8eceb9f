"""Prefix search: rows of ended or running requests that a new prompt can reuse."""

from collections.abc import Iterable

from headlong.cache.prefix_cache import Prefix, common_length
from headlong.decode.sequence import DecodingSequence

MIN_SHARED_ROWS = 16
"""A prompt waits for another one that is about to compute this many common rows."""


def find_prefix(
    sequence: DecodingSequence, kept: Iterable[Prefix], others: Iterable[DecodingSequence]
) -> tuple[Prefix | None, int]:
    """Return the prefix with the most rows that a request can reuse, and their number."""
    best: Prefix | None = None
    most = 0
    if sequence.request.reads_all_rows:
        return best, most
    for prefix in [*kept, *map(prefix_of, others)]:
        if prefix.salt != sequence.request.cache_salt:
            continue
        num_rows = prefix.num_shared(
            sequence.token_ids, has_drafter=sequence.drafts, lets_wait=sequence.plan.is_idle
        )
        if num_rows > most:
            best, most = prefix, num_rows
    return best, most


def awaits_prompt(
    sequence: DecodingSequence, others: Iterable[DecodingSequence], num_rows: int
) -> bool:
    """Tell whether another prompt is being read that will spare this one more than `num_rows`."""
    if sequence.request.reads_all_rows:
        return False
    for other in others:
        is_reading = other.num_rows_left > 0
        is_shared = other.request.cache_salt == sequence.request.cache_salt
        if is_reading and is_shared and (other.drafts or not sequence.drafts):
            num_common = common_length(other.token_ids, sequence.token_ids)
            if other.cache.will_share(num_common - 1) - num_rows >= MIN_SHARED_ROWS:
                return True
    return False


def prefix_of(sequence: DecodingSequence) -> Prefix:
    """Return a prefix with the rows of a sequence, for other requests."""
    return Prefix(
        sequence.token_ids,
        sequence.cache,
        sequence.draft_state,
        sequence.backlog,
        salt=sequence.request.cache_salt,
    )
