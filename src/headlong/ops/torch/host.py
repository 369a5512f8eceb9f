"""The host part of the torch backend: as numpy's, for rows that come from a device."""

from collections.abc import Sequence
from typing import Any

from headlong.ops.numpy.host import NumpyHost, PlainRows


class TorchHost(NumpyHost):
    """Picks and indices in numpy; rows that wait for a drafter wait on the host."""

    def pack_rows(self, rows: Any, parts: Sequence[tuple[PlainRows, int, int]]) -> None:
        """Append to every store of the parts its rows, first to stop, of `rows`."""
        super().pack_rows(rows.float().cpu().numpy(), parts)
