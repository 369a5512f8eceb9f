"""Cache memory: which sequence or prefix holds which cache, within one limit on all bytes.

In:  requests that begin or end, and how many rows they are about to run. Out: caches, with the rows
of a common prefix that another request has already computed; and whether more rows fit.
Running sequences share rows, too: their caches are forked while they continue.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from headlong.cache.prefix_cache import Prefix, PrefixCache, common_length
from headlong.decode.draft_backlog import catch_up
from headlong.decode.new_sequence import no_cache
from headlong.decode.prefix_search import find_prefix, prefix_of
from headlong.decode.sequence import Backlog, DecodingSequence
from headlong.drafters.drafter import Drafter
from headlong.models.transformer import Backbone

SPARE_ROWS = 32
"""Rows after the last token, for pending rows of drafts and forced spans."""

ROOM_AHEAD = 128
"""Tokens of an answer for which memory is reserved at once: growing later means copying."""

MIN_MOVED_SHARE = 0.9
"""If a prompt uses this share of a kept prefix, the prefix is moved to it instead of copied."""


@dataclass(slots=True)
class CacheMemory:
    """The caches of a runner."""

    backbone: Backbone
    drafter: Drafter | None
    kv_bytes: int | None
    """Bytes for all caches together; None sets no bound."""
    prefix_bytes: int
    """Of these, bytes that prefixes of ended requests may take."""
    prefixes: PrefixCache = field(init=False)
    hit_tokens: int = 0
    lookup_tokens: int = 0

    def __post_init__(self) -> None:
        self.prefixes = PrefixCache(self.prefix_bytes)

    @property
    def max_sequence_tokens(self) -> int:
        """Tokens, prompt and answer, that a request alone can have: the context, or less."""
        context = self.backbone.config.context_length
        if self.kv_bytes is None or self.bytes_for(context, drafts=True) <= self.kv_bytes:
            return context
        fits, too_many = 0, context
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            if self.bytes_for(middle, drafts=True) <= self.kv_bytes:
                fits = middle
            else:
                too_many = middle
        return fits

    def bytes_for(self, num_tokens: int, drafts: bool) -> int:
        """Return the bytes a sequence takes once it has so many tokens."""
        cache = self.backbone.make_cache()
        num_bytes = cache.bytes_for(num_tokens + SPARE_ROWS)
        if drafts and self.drafter is not None:
            # A head's cache grows by quarters, and does not know where that will end.
            num_rows = (num_tokens + SPARE_ROWS) * 5 // 4
            num_bytes += self.drafter.num_bytes(self.drafter.begin(), num_rows)
        return num_bytes

    def bytes_of(self, sequence: DecodingSequence | Prefix, num_more_rows: int = 0) -> int:
        """Return the bytes a sequence takes once it has run so many more rows."""
        num_rows = sequence.cache.length + num_more_rows
        num_bytes = sequence.cache.bytes_for(num_rows)
        if self.drafter is not None and sequence.draft_state is not None:
            num_bytes += self.drafter.num_bytes(sequence.draft_state, num_rows)
            num_bytes += sequence.backlog.bytes_for(num_more_rows)
        return num_bytes

    def has_room(self, num_bytes: int, spared: Prefix | None = None) -> bool:
        """Tell whether running sequences may take `num_bytes`; let go of prefixes for that.

        A `spared` prefix stays: a request is about to use it.
        """
        limit = self.kv_bytes
        if limit is None:
            return True
        dropped = [one for one in self.prefixes if one is not spared]
        num_spared = self.prefixes.num_bytes - sum(one.num_bytes for one in dropped)
        if num_bytes + num_spared > limit:
            return False  # and it would not help to let go of any
        while num_bytes + self.prefixes.num_bytes > limit:
            self.prefixes.take(dropped.pop(0))
        return True

    def find(
        self, sequence: DecodingSequence, others: Iterable[DecodingSequence]
    ) -> tuple[Prefix | None, int]:
        """Return the prefix that spares a request most rows, and how many."""
        return find_prefix(sequence, self.prefixes, others)

    def bytes_to_begin(
        self, sequence: DecodingSequence, prefix: Prefix | None, num_rows: int
    ) -> int:
        """Return how many more bytes running sequences take once this one has begun."""
        num_bytes = self.bytes_for(self._first_room(sequence), sequence.drafts)
        # What is handed over was counted as kept so far, and is given up there.
        if prefix is None or not self._is_moved(sequence, prefix, num_rows):
            return num_bytes
        return num_bytes - prefix.num_bytes

    def begin(self, sequence: DecodingSequence, prefix: Prefix | None, num_rows: int) -> None:
        """Give a sequence its caches, with the first `num_rows` of a prefix in them."""
        drafter = self.drafter if sequence.drafts else None
        sequence.backlog = Backlog(self.backbone.ops.host)
        if prefix is None:
            sequence.cache = self.backbone.make_cache()
            sequence.draft_state = None if drafter is None else drafter.begin()
        else:
            self._use(sequence, prefix, num_rows, drafter)
        request = sequence.request
        most = min(request.stopping.max_tokens, self.backbone.config.context_length)
        sequence.cache.max_length = len(request.prompt_ids) + most + SPARE_ROWS
        sequence.cache.reserve(self._first_room(sequence))
        if sequence.cache.is_recurrent:
            alike = [one.token_ids for one in self.prefixes if one.salt == request.cache_salt]
            num_common = max((common_length(ids, request.prompt_ids) for ids in alike), default=0)
            sequence.cache.plan_snapshots(len(request.prompt_ids), num_common)
        if not sequence.has_begun:
            sequence.num_cached_tokens = num_rows
            self.hit_tokens += num_rows
            self.lookup_tokens += len(request.prompt_ids)

    def release(self, sequence: DecodingSequence, *, keeps: bool) -> None:
        """Take a sequence's caches back, and keep them for others where they fit."""
        if keeps and sequence.cache.length:
            prefix = prefix_of(sequence)
            prefix.num_bytes = self.bytes_of(sequence)
            self.prefixes.keep(prefix)
        sequence.cache, sequence.draft_state = no_cache(), None
        sequence.backlog = Backlog(self.backbone.ops.host)

    def _use(
        self, sequence: DecodingSequence, prefix: Prefix, num_rows: int, drafter: Drafter | None
    ) -> None:
        state = None
        if drafter is not None:
            if not sequence.plan.is_idle:
                catch_up(drafter, [prefix])  # what its owner had no use for
            num_observed = min(num_rows, prefix.num_observed)
            state = drafter.share(prefix.draft_state, num_observed)
            sequence.backlog = prefix.backlog.first_rows(num_rows - num_observed)
        if self._is_moved(sequence, prefix, num_rows):
            self.prefixes.take(prefix)
            sequence.cache = prefix.cache
            sequence.cache.fork_in_place(num_rows)
        else:
            self.prefixes.touch(prefix, self.bytes_of(prefix))
            room = self._first_room(sequence)
            sequence.cache = prefix.cache.fork(num_rows, self.backbone.make_cache, room)
        sequence.draft_state = state

    def _first_room(self, sequence: DecodingSequence) -> int:
        """Return how many positions a sequence gets room for when it begins."""
        num_left = sequence.max_tokens_left(self.backbone.config.context_length)
        return len(sequence.token_ids) + min(num_left, ROOM_AHEAD)

    def _is_moved(self, sequence: DecodingSequence, prefix: Prefix, num_rows: int) -> bool:
        """Tell whether a prefix is moved to a request; else it is copied."""
        is_kept = any(prefix is one for one in self.prefixes)
        # One that does not draft would come back without the drafter's memory.
        uses_all = sequence.drafts or prefix.draft_state is None
        return is_kept and uses_all and num_rows >= MIN_MOVED_SHARE * prefix.cache.length
