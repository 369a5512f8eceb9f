"""Kept prefixes: states of requests that have ended, for requests that begin the same way.

In:  the tokens of a sequence with its state and its drafter's memory. Out: for a new prompt, the
kept ones with the longest common beginning. Bounded by bytes; the one not used for longest goes
first. What a drafter's memory holds, and which rows still wait for it, is opaque here.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headlong.cache.sequence_state import SequenceState


@dataclass(slots=True, eq=False)
class Prefix:
    """Tokens that a request has run, and the caches that this left."""

    token_ids: list[int]
    cache: SequenceState
    draft_state: Any = None
    """None if the sequence had none."""
    backlog: Any = None
    """Rows of the cache that the drafter has not observed yet."""
    num_bytes: int = 0
    salt: str = ""
    """Only requests with the same salt may share it."""

    def num_shared(
        self, prompt_ids: Sequence[int], *, has_drafter: bool, lets_wait: bool = False
    ) -> int:
        """Return how many rows a prompt can reuse from this prefix.

        At least one row of a prompt must run, since the first token is picked from it. A row of a
        drafter pairs a position with the next token, so of m common tokens only m - 1 rows of a
        draft state can be reused, or m if the last row is still in the backlog and may stay there.
        A sequence that drafts cannot use a prefix without a draft state, since a head needs all
        rows. The result is limited to a length at which the state can be forked.
        """
        num_common = common_length(self.token_ids, prompt_ids)
        num_rows = min(num_common, self.cache.length, len(prompt_ids) - 1)
        if has_drafter and self.draft_state is None:
            return 0
        if has_drafter and not (lets_wait and self.num_observed < num_common):
            num_rows = min(num_rows, num_common - 1)
        return self.cache.shareable_length(max(0, num_rows))

    @property
    def num_observed(self) -> int:
        """Rows that the drafter has observed."""
        return self.cache.length - (0 if self.backlog is None else self.backlog.num_rows)


class PrefixCache:
    """Prefixes of ended requests, at most `limit_bytes` of them."""

    def __init__(self, limit_bytes: int, drop: Callable[[Prefix], None] | None = None) -> None:
        """Keep at most `limit_bytes`; call `drop` for every prefix that is not kept any longer."""
        self.limit_bytes = limit_bytes
        self._drop = drop or (lambda prefix: None)
        self.num_bytes = 0
        self._kept: list[Prefix] = []

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Prefix]:
        return iter(self._kept)

    def keep(self, prefix: Prefix) -> None:
        """Keep a prefix as the one used last; those it makes superfluous go."""
        if prefix.num_bytes > self.limit_bytes or not prefix.cache.length:
            self._drop(prefix)
            return
        for other in list(self._kept):
            if _covers(prefix, other):
                self.take(other)
                self._drop(other)
        self._kept.append(prefix)
        self.num_bytes += prefix.num_bytes
        while self.num_bytes > self.limit_bytes:
            self.drop_oldest()

    def take(self, prefix: Prefix) -> None:
        """Give a kept prefix away."""
        self._kept.remove(prefix)
        self.num_bytes -= prefix.num_bytes

    def touch(self, prefix: Prefix, num_bytes: int) -> None:
        """Note that a prefix was of use, and what it takes since."""
        if prefix in self._kept:
            self.take(prefix)
            prefix.num_bytes = num_bytes
            self.keep(prefix)

    def drop_oldest(self) -> None:
        """Let go of the prefix that was not used for longest."""
        oldest = self._kept[0]
        self.take(oldest)
        self._drop(oldest)

    def clear(self) -> None:
        """Let go of all of them."""
        while self._kept:
            self.drop_oldest()


def common_length(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """Return how many leading tokens are equal."""
    limit = min(len(ours), len(theirs))
    step = 16
    done = 0
    # Slices are compared at the speed of C; where two differ, a smaller slice is looked at.
    while done < limit:
        stop = min(done + step, limit)
        if list(ours[done:stop]) == list(theirs[done:stop]):
            done, step = stop, 2 * step
        elif stop - done == 1:
            break
        else:
            limit, step = stop, max(1, (stop - done) // 2)
    return done


def _covers(prefix: Prefix, other: Prefix) -> bool:
    """Tell whether all that `other` is good for can be had from `prefix`."""
    if other.draft_state is not None and prefix.draft_state is None:
        return False
    length = other.cache.length
    is_longer = prefix.cache.shareable_length(length) == length and prefix.salt == other.salt
    num_needed = len(other.token_ids)
    return is_longer and common_length(prefix.token_ids, other.token_ids) == num_needed
