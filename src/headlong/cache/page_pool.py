"""The page pool: allocation of fixed-size cache pages, and sequence states in such pages.

In:  the number of pages. Out: page numbers by sequence. Sequences with a common prefix share pages:
only full pages, which no pass writes any more; a partial last page is copied.
Knows page numbers only; the keys and values are the runner's. Passes that began earlier may still
read a freed page; its next user runs after them.
"""

from collections.abc import Callable, Sequence

from headlong.cache.sequence_state import SequenceState

PAGE_ROWS = 64
"""Rows of a page; `ops.paged_blocks.PAGE_SIZE`."""


class PagePool:
    """All pages of a device. Page 0 is unused: rows beyond a sequence's pages are written there."""

    def __init__(self, num_pages: int, page_bytes: int, copy: Callable[[int, int], None]) -> None:
        """Hold the pages 1 to `num_pages`; `copy` copies what is in one to another."""
        self.num_pages = num_pages
        self.page_bytes = page_bytes
        self.copy = copy
        self._free = list(range(num_pages, 0, -1))
        self._num_users = [0] * (num_pages + 1)

    @property
    def num_free(self) -> int:
        """Number of free pages."""
        return len(self._free)

    def allocate(self, num_pages: int) -> list[int]:
        """Return `num_pages` free pages; the caller checks that there are so many."""
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

    def free(self, pages: Sequence[int]) -> None:
        """Count one user less; pages without users become free."""
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
        """Return how many more pages `length` rows need."""
        return max(0, num_pages_for(length) - len(self.pages))

    def reserve(self, length: int) -> None:
        """Allocate the missing pages for `length` rows."""
        self.pages += self._pool.allocate(self.num_missing(length))

    def bytes_for(self, length: int) -> int:
        """Return the bytes of the pages it will take, shared ones included."""
        return self._pool.page_bytes * max(len(self.pages), num_pages_for(length))

    def shareable_length(self, num_rows: int) -> int:
        """Return the largest length, at most `num_rows`, that this state can be forked at."""
        return min(num_rows, self.length if self.num_observed is None else self.num_observed)

    def share_from(self, other: "PagedState", length: int) -> int | None:
        """Share the full pages of the first `length` rows of another state.

        Returns the page with the remaining rows, if any. Once this state has a page for them,
        `copy_rest` copies that page.
        """
        assert not self.pages, "only a fresh state can begin with another's rows"
        assert length <= other.length, (length, other.length)
        num_whole = length // PAGE_ROWS
        self.pages = self._pool.share(other.pages[:num_whole])
        self.length = length
        return other.pages[num_whole] if length % PAGE_ROWS else None

    def copy_rest(self, page: int) -> None:
        """Copy the partial page that `share_from` returned."""
        self._pool.copy(page, self.pages[self.length // PAGE_ROWS])

    def keep_observed(self) -> None:
        """Drop the rows that no head has observed, and the pages behind the others."""
        self.length = self.shareable_length(self.length)
        num_kept = num_pages_for(self.length)
        self._pool.free(self.pages[num_kept:])
        del self.pages[num_kept:]

    def free(self) -> None:
        """Free all pages."""
        self._pool.free(self.pages)
        self.pages, self.length, self.num_pending = [], 0, 0


def num_pages_for(length: int) -> int:
    """Return how many pages hold so many rows."""
    return -(-length // PAGE_ROWS)
