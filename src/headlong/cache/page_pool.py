"""Pages: fixed pieces of a device's cache, and the states of sequences whose rows lie in them.

In:  how many pages there are. Out: who has which. A page may belong to several sequences that begin
alike: only whole pages of rows that no pass writes any more are shared, so the last one is copied.
Knows page numbers only; the keys and values are the runner's. What a sequence gives back may still
be read by passes that were begun before: whatever uses the page next, comes behind them.
"""

from collections.abc import Callable, Sequence

from headlong.cache.sequence_state import SequenceState

PAGE_ROWS = 64
"""Rows of a page; `ops.paged_blocks.PAGE_SIZE`."""


class PagePool:
    """All pages of a device. Page 0 is nobody's: rows beyond a sequence's pages end up there."""

    def __init__(self, num_pages: int, page_bytes: int, copy: Callable[[int, int], None]) -> None:
        """Hold the pages 1 to `num_pages`; `copy` copies what is in one to another."""
        self.num_pages = num_pages
        self.page_bytes = page_bytes
        self.copy = copy
        self._free = list(range(num_pages, 0, -1))
        self._num_users = [0] * (num_pages + 1)

    @property
    def num_free(self) -> int:
        """Pages that nobody has."""
        return len(self._free)

    def take(self, num_pages: int) -> list[int]:
        """Return so many free pages, which must be there."""
        assert num_pages <= len(self._free), f"{num_pages} pages are wanted, {self.num_free} free"
        pages = [self._free.pop() for _ in range(num_pages)]
        for page in pages:
            self._num_users[page] = 1
        return pages

    def share(self, pages: Sequence[int]) -> list[int]:
        """Count one more user of these pages."""
        for page in pages:
            self._num_users[page] += 1
        return list(pages)

    def give_back(self, pages: Sequence[int]) -> None:
        """Count one user less; pages without any are free."""
        for page in pages:
            self._num_users[page] -= 1
            if not self._num_users[page]:
                self._free.append(page)


class PagedState(SequenceState):
    """The state of one sequence in pages of a pool."""

    def __init__(self, pool: PagePool) -> None:
        super().__init__(())
        self._pool = pool
        self.pages: list[int] = []
        """In the order of the rows they hold."""
        self.num_observed: int | None = None
        """Rows that a head has observed, whose keys and values lie in the same pages; None without
        a head. Only these can be forked for a sequence that drafts."""

    def num_missing(self, length: int) -> int:
        """Return how many more pages it takes to have room for `length` rows."""
        return max(0, num_pages_for(length) - len(self.pages))

    def reserve(self, length: int) -> None:
        """Take the pages that are missing for `length` rows."""
        self.pages += self._pool.take(self.num_missing(length))

    def bytes_for(self, length: int) -> int:
        """Return the bytes of the pages it will take, shared ones included."""
        return self._pool.page_bytes * max(len(self.pages), num_pages_for(length))

    def shareable_length(self, num_rows: int) -> int:
        """Return the largest length, at most `num_rows`, that this state can be forked at."""
        return min(num_rows, self.length if self.num_observed is None else self.num_observed)

    def begin_with(self, other: "PagedState", length: int) -> int | None:
        """Share the whole pages of the first `length` rows of another state.

        Returns the page of the rows behind them, if there are any, of which `copy_rest` is then to
        make a copy once this state has a page for it.
        """
        assert not self.pages, "only a fresh state can begin with another's rows"
        assert length <= other.length, (length, other.length)
        num_whole = length // PAGE_ROWS
        self.pages = self._pool.share(other.pages[:num_whole])
        self.length = length
        return other.pages[num_whole] if length % PAGE_ROWS else None

    def copy_rest(self, page: int) -> None:
        """Copy the page that is shared in part."""
        self._pool.copy(page, self.pages[self.length // PAGE_ROWS])

    def keep_observed(self) -> None:
        """Drop the rows that no head has observed, and the pages behind the others."""
        self.length = self.shareable_length(self.length)
        num_kept = num_pages_for(self.length)
        self._pool.give_back(self.pages[num_kept:])
        del self.pages[num_kept:]

    def free(self) -> None:
        """Give all pages back."""
        self._pool.give_back(self.pages)
        self.pages, self.length, self.num_pending = [], 0, 0


def num_pages_for(length: int) -> int:
    """Return how many pages hold so many rows."""
    return -(-length // PAGE_ROWS)
