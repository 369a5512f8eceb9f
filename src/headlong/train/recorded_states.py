"""Recorded states: the hidden rows of answers on disk, in one file beside each shard.

In:  the rows that a recorder kept, in bfloat16. Out: the rows of single answers, read when needed.
An answer without rows was not recorded, or the disk had no room for it.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from headlong.arrays import IntArray
from headlong.models.hidden import HiddenRows

_DISK_SHARE = 0.5
"""Share of the free disk that may be used."""


class StoredAnswers(Protocol):
    """The answers of some shards."""

    @property
    def shards(self) -> tuple[Path, ...]:
        """The files."""

    @property
    def shard_sizes(self) -> tuple[int, ...]:
        """Number of answers in each."""

    @property
    def lengths(self) -> IntArray:
        """Tokens of every answer, prompt included."""


def room_for_states(folder: Path) -> int:
    """Return the bytes of states that may be written to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    return int(shutil.disk_usage(folder).free * _DISK_SHARE)


def states_file(shard: Path) -> Path:
    """Return the file with the hidden rows of a shard's answers."""
    return shard.with_suffix(".states")


def write_states(path: Path, states: Sequence[Tensor | None]) -> None:
    """Write the rows of a shard's answers; an answer without rows is left out.

    Without any rows there is no file, also if a killed run has left one.
    """
    kept = {str(i): rows.contiguous() for i, rows in enumerate(states) if rows is not None}
    if not kept:
        path.unlink(missing_ok=True)
        return
    part = path.with_suffix(".part")
    save_file(kept, part)
    part.replace(path)


class RecordedStates:
    """The recorded rows of all answers, for a head with certain inputs."""

    def __init__(self, answers: StoredAnswers, hidden_size: int, num_taps: int) -> None:
        """Open the files beside the shards; rows that do not fit their answer are not used."""
        self._hidden_size = hidden_size
        self._width = hidden_size * (1 + num_taps)
        self._places: dict[int, tuple[Any, str]] = {}
        first = 0
        for shard, size in zip(answers.shards, answers.shard_sizes, strict=True):
            file, keys = _open(states_file(shard))
            for key in keys:
                shape = file.get_slice(key).get_shape()
                # A file may be left from another shard of this name, or be of another head.
                if int(key) < size and self._fits(shape, int(answers.lengths[first + int(key)])):
                    self._places[first + int(key)] = (file, key)
            first += size

    def __len__(self) -> int:
        return len(self._places)

    def _fits(self, shape: Sequence[int], length: int) -> bool:
        """Tell whether rows are of an answer of this length, with all that the head reads."""
        num_rows, width = shape
        has_no_taps = self._width == self._hidden_size
        is_wide_enough = width >= self._width if has_no_taps else width == self._width
        return num_rows == length - 1 and is_wide_enough

    def read(self, answer: int, length: int, dtype: torch.dtype) -> HiddenRows | None:
        """Return an answer's rows, padded to `length` with zeros; None if it has none.

        Rows before the final norm are not recorded and are empty.
        """
        if answer not in self._places:
            return None
        file, key = self._places[answer]
        recorded = file.get_tensor(key)[:, : self._width].to(dtype)
        rows = F.pad(recorded, (0, 0, 0, length - len(recorded)))
        normed, taps = rows[:, : self._hidden_size], rows[:, self._hidden_size :]
        return HiddenRows(rows[:, :0], normed, taps if taps.shape[1] else None)


def _open(path: Path) -> tuple[Any, list[str]]:
    """Open a file; return it and the names of its tensors, none if it is missing or damaged."""
    try:
        file: Any = safe_open(path, framework="pt")
    except (OSError, SafetensorError):
        return None, []
    return file, list(file.keys())
