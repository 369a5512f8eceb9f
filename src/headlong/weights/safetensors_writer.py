"""Safetensors files written: laid out first, then filled tensor by tensor.

In:  names, types, shapes, and where each tensor's bytes come from.
Out: a file that `safetensors_file` reads; there is none until it is whole.
Bytes are asked for one tensor at a time, so a backbone never lies in memory as a whole.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_WIDTHS = {"I64": 8, "F32": 4, "U32": 4, "F16": 2, "BF16": 2, "BOOL": 1}


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a file to be written."""

    name: str
    dtype: str
    """As safetensors spells it: F32, F16, BF16, I64, U32 or BOOL."""
    shape: tuple[int, ...]
    chunks: Callable[[], Iterable[bytes]]
    """Called when it is the tensor's turn; returns its bytes in order."""

    @property
    def num_bytes(self) -> int:
        """Bytes it takes in the file."""
        return math.prod(self.shape) * _WIDTHS[self.dtype]


def write_safetensors(path: Path, entries: Iterable[Entry]) -> None:
    """Write a file under another name first, so that no half-written one is ever found."""
    # Wide types first, so that all are aligned.
    ordered = sorted(entries, key=lambda entry: (-_WIDTHS[entry.dtype], entry.name))
    write_whole(path, _file_chunks(ordered))


def write_whole(path: Path, chunks: Iterable[bytes]) -> None:
    """Write a file of any kind under another name first."""
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as file:
        file.writelines(chunks)
    os.replace(part, path)


def _file_chunks(entries: Sequence[Entry]) -> Iterator[bytes]:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for entry in entries:
        header[entry.name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [end, end + entry.num_bytes],
        }
        end += entry.num_bytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for entry in entries:
        yield from entry.chunks()
