"""Recorded states: the hidden rows of answers on disk, in one file beside each shard.

In:  the rows that a recorder kept, in bfloat16. Out: the rows of single answers, read when needed.
An answer without rows was not recorded, or the disk had no room for it.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from headlong.models.hidden import HiddenRows

_DISK_SHARE = 0.5
"""Share of the free disk that may be used."""


def room_for_states(folder: Path) -> int:
    """Return the bytes of states that may be written to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    return int(shutil.disk_usage(folder).free * _DISK_SHARE)


def states_file(shard: Path) -> Path:
    """Return the file with the hidden rows of a shard's answers."""
    return shard.with_suffix(".states")


def write_states(path: Path, states: Sequence[Tensor | None]) -> None:
    """Write the rows of a shard's answers; an answer without rows is left out."""
    kept = {str(i): rows.contiguous() for i, rows in enumerate(states) if rows is not None}
    part = path.with_suffix(".part")
    save_file(kept, part)
    part.replace(path)


class RecordedStates:
    """The recorded rows of all answers, for a head with certain inputs."""

    def __init__(
        self, shards: Sequence[Path], sizes: Sequence[int], hidden_size: int, num_taps: int
    ) -> None:
        """Open the files of shards with so many answers each."""
        self._hidden_size = hidden_size
        self._num_taps = num_taps
        self._places: dict[int, tuple[Any, str]] = {}
        first = 0
        for shard, size in zip(shards, sizes, strict=True):
            file, keys = _open(states_file(shard))
            self._places |= {first + int(key): (file, key) for key in keys}
            first += size
        width = hidden_size * (1 + num_taps)
        if any(file.get_slice(key).get_shape()[1] != width for file, key in self._places.values()):
            self._places.clear()  # recorded for a head with other inputs

    def __len__(self) -> int:
        return len(self._places)

    def read(self, answer: int, length: int, dtype: torch.dtype) -> HiddenRows | None:
        """Return an answer's rows, padded to `length` with zeros; None if it has none.

        Rows before the final norm are not recorded and are empty.
        """
        if answer not in self._places:
            return None
        file, key = self._places[answer]
        recorded = file.get_tensor(key).to(dtype)
        rows = F.pad(recorded, (0, 0, 0, length - len(recorded)))
        normed, taps = rows[:, : self._hidden_size], rows[:, self._hidden_size :]
        return HiddenRows(rows[:, :0], normed, taps if self._num_taps else None)


def _open(path: Path) -> tuple[Any, list[str]]:
    """Open a file; return it and the names of its tensors, none if it is missing or damaged."""
    try:
        file: Any = safe_open(path, framework="pt")
    except (OSError, SafetensorError):
        return None, []
    return file, list(file.keys())
