"""Page memory: which sequence or prefix holds which pages of the pool.

In:  sequences that begin, continue or end. Out: states in pages, with the rows of a common prefix
that another request has already computed; and whether more rows fit. If memory is short, the least
recently used prefixes are dropped first. Shared pages count once.
"""

from collections.abc import Sequence

from headlong.cache.page_pool import PAGE_ROWS, PagedState, PagePool, num_pages_for
from headlong.cache.prefix_cache import Prefix, PrefixCache
from headlong.decode.new_sequence import no_cache
from headlong.decode.prefix_search import awaits_prompt, find_prefix, prefix_of
from headlong.decode.runner import Admission, MemoryUsage
from headlong.decode.sequence import DecodingSequence

ROOM_ROWS = 40
"""Rows behind a sequence's last one that a round, and one begun ahead of it, may write."""


class PageMemory:
    """The pages of a runner."""

    def __init__(self, pool: PagePool, prefix_bytes: int) -> None:
        self.pool = pool
        self.prefixes = PrefixCache(prefix_bytes, _free)
        self._live: list[DecodingSequence] = []
        self._hit_tokens = 0
        self._lookup_tokens = 0

    @property
    def most_tokens(self) -> int:
        """Tokens that a sequence can have which is alone."""
        return self.pool.num_pages * PAGE_ROWS - ROOM_ROWS

    @property
    def usage(self) -> MemoryUsage:
        """What the pages hold now."""
        pool = self.pool
        return MemoryUsage(
            kv_bytes=(pool.num_pages - pool.num_free) * pool.page_bytes,
            prefix_bytes=self.prefixes.num_bytes,
            prefix_entries=len(self.prefixes),
            prefix_hit_tokens=self._hit_tokens,
            prefix_lookup_tokens=self._lookup_tokens,
        )

    def begin(self, sequence: DecodingSequence, *, has_head: bool) -> Admission:
        """Give a sequence its pages, the first ones those of a prefix where there is one.

        With `has_head` a head observes the rows of those that draft.
        """
        prefix, num_rows = find_prefix(sequence, self.prefixes, self._live)
        if awaits_prompt(sequence, self._live, num_rows):
            return Admission.DEFERRED
        state, rest = PagedState(self.pool), None
        if prefix is not None:
            rest = state.share_from(state_of(prefix), num_rows)
            self.prefixes.touch(prefix, prefix.num_bytes)
        length = len(sequence.token_ids) + ROOM_ROWS
        # Room for what runs already to go on, or the new one is soon preempted.
        if not self._make_room(state.num_missing(length) + self._num_missing(self._live)):
            state.free()
            return Admission.NO_ROOM
        state.reserve(length)
        state.num_observed = num_rows if has_head and sequence.drafts else None
        sequence.cache = state
        self._live.append(sequence)
        if rest is not None:
            state.copy_rest(rest)
        if not sequence.has_begun:
            sequence.num_cached_tokens = num_rows
            self._hit_tokens += num_rows
            self._lookup_tokens += len(sequence.request.prompt_ids)
        return Admission.BEGUN

    def has_room(self, decoding: Sequence[DecodingSequence]) -> bool:
        """Tell whether the next rounds of these sequences fit; let go of prefixes for that."""
        return self._make_room(self._num_missing(decoding))

    def release(self, sequence: DecodingSequence, *, keeps: bool) -> None:
        """Take a sequence's pages back, or keep them for others."""
        if sequence not in self._live:
            return
        self._live.remove(sequence)
        state = state_of(sequence)
        if keeps:
            state.keep_observed()
            prefix = prefix_of(sequence)
            prefix.num_bytes = state.bytes_for(state.length)
            self.prefixes.keep(prefix)
        else:
            state.free()
        sequence.cache, sequence.draft_state = no_cache(), None

    def _make_room(self, num_pages: int) -> bool:
        while self.pool.num_free < num_pages and len(self.prefixes):
            self.prefixes.drop_oldest()
        return self.pool.num_free >= num_pages

    def _num_missing(self, sequences: Sequence[DecodingSequence]) -> int:
        """Return how many pages sequences lack for their next rounds."""
        states = [state_of(one) for one in sequences]
        return sum(state.num_missing(state.length + ROOM_ROWS) for state in states)


def state_of(owner: DecodingSequence | Prefix) -> PagedState:
    """Return the state of a sequence that has begun, or of one that has ended."""
    assert isinstance(owner.cache, PagedState)
    return owner.cache


def pages_of_context(num_tokens: int) -> int:
    """Return how many pages a sequence may come to have, rows of drafts included."""
    return num_pages_for(num_tokens + ROOM_ROWS)


def _free(prefix: Prefix) -> None:
    state_of(prefix).free()
