"""Forward cache: spares training the backbone's forward pass where its hidden rows are known.

In:  a teacher, a batch. Out: its hidden rows.
For CPUs, where the forward pass is more than half of a training step. Rows that were recorded while
the answers were generated are read from disk. Others are computed once and kept in memory for later
epochs: an answer has the same padded ids in every epoch, whatever else is in its batch.
"""

from dataclasses import dataclass, field

import torch

from headlong.models.hidden import HiddenRows
from headlong.train.batches import Batch
from headlong.train.recorded_states import RecordedStates
from headlong.train.teacher import Teacher


@dataclass(slots=True)
class ForwardCache:
    """Hidden rows by sequence."""

    teacher: Teacher
    tap_layers: tuple[int, ...]
    max_bytes: int
    """Sequences beyond this are computed anew each time."""
    keeps_raw: bool = True
    """Whether the head reads rows before the final norm, which are never recorded."""
    recorded: RecordedStates | None = None
    _rows: dict[bytes, HiddenRows] = field(default_factory=dict)
    _num_bytes: int = 0

    def forward(self, batch: Batch) -> HiddenRows:
        """Return the rows of whole sequences from position 0: (B, T) → (B * T, …)."""
        keys = [line.tobytes() for line in batch.ids]
        found = self._find(batch, keys)
        missing = [index for index, key in enumerate(keys) if key not in found]
        if missing:
            hidden = self.teacher.forward(torch.from_numpy(batch.ids[missing]), self.tap_layers)
            length = batch.ids.shape[1]
            for place, index in enumerate(missing):
                rows = hidden.rows(place * length, (place + 1) * length)
                if not self.keeps_raw:
                    rows = rows._replace(raw=hidden.nothing[:length])
                found[keys[index]] = self._keep(keys[index], rows)
        parts = [found[key] for key in keys]
        taps = [part.taps for part in parts if part.taps is not None]
        return HiddenRows(
            torch.cat([part.raw for part in parts]),
            torch.cat([part.normed for part in parts]),
            torch.cat(taps) if taps else None,
        )

    def _find(self, batch: Batch, keys: list[bytes]) -> dict[bytes, HiddenRows]:
        """Return the rows of the sequences that are known, by key."""
        found = {key: self._rows[key] for key in keys if key in self._rows}
        if self.recorded is not None and batch.answers is not None:
            length, dtype = batch.ids.shape[1], self.teacher.ops.dtype
            for key, answer in zip(keys, batch.answers.tolist(), strict=True):
                rows = self.recorded.read(answer, length, dtype)
                if rows is not None:
                    found[key] = rows
        return found

    def _keep(self, key: bytes, rows: HiddenRows) -> HiddenRows:
        """Keep a copy of the rows if there is room: a view would keep the whole batch alive."""
        num_bytes = sum(part.nbytes for part in rows if part is not None)
        if self._num_bytes + num_bytes > self.max_bytes:
            return rows
        self._num_bytes += num_bytes
        taps = None if rows.taps is None else rows.taps.clone()
        self._rows[key] = HiddenRows(rows.raw.clone(), rows.normed.clone(), taps)
        return self._rows[key]
