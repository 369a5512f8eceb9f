"""Forward cache: keeps the backbone's hidden rows, so that later epochs need no forward pass.

In:  a teacher, padded token ids. Out: their hidden rows.
For CPUs, where the forward pass is more than half of a training step and memory is plentiful. An
answer has the same padded ids in every epoch, whatever else is in its batch.
"""

from dataclasses import dataclass, field

import torch

from headlong.arrays import IntArray
from headlong.models.hidden import HiddenRows
from headlong.train.teacher import Teacher


@dataclass(slots=True)
class ForwardCache:
    """Hidden rows by sequence."""

    teacher: Teacher
    tap_layers: tuple[int, ...]
    max_bytes: int
    """Sequences beyond this are computed anew each time."""
    _rows: dict[bytes, HiddenRows] = field(default_factory=dict)
    _num_bytes: int = 0

    def forward(self, ids: IntArray) -> HiddenRows:
        """Run whole sequences from position 0, or return what was kept: (B, T) → (B * T, …)."""
        keys = [line.tobytes() for line in ids]
        missing = [index for index, key in enumerate(keys) if key not in self._rows]
        found = {key: self._rows[key] for key in keys if key in self._rows}
        if missing:
            hidden = self.teacher.forward(torch.from_numpy(ids[missing]), self.tap_layers)
            length = ids.shape[1]
            for place, index in enumerate(missing):
                rows = hidden.rows(place * length, (place + 1) * length)
                found[keys[index]] = self._keep(keys[index], rows)
        parts = [found[key] for key in keys]
        taps = [part.taps for part in parts if part.taps is not None]
        return HiddenRows(
            torch.cat([part.raw for part in parts]),
            torch.cat([part.normed for part in parts]),
            torch.cat(taps) if taps else None,
        )

    def _keep(self, key: bytes, rows: HiddenRows) -> HiddenRows:
        """Keep a copy of the rows if there is room: a view would keep the whole batch alive."""
        num_bytes = sum(part.nbytes for part in rows if part is not None)
        if self._num_bytes + num_bytes > self.max_bytes:
            return rows
        self._num_bytes += num_bytes
        taps = None if rows.taps is None else rows.taps.clone()
        self._rows[key] = HiddenRows(rows.raw.clone(), rows.normed.clone(), taps)
        return self._rows[key]
