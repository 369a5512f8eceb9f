"""Safetensors files: what is written is what is read, and nothing half-written is found."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from headlong.weights.safetensors_file import read_safetensors
from headlong.weights.safetensors_writer import Entry, write_safetensors


def entry(
    name: str, dtype: str, values: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]"
) -> Entry:
    """An entry whose bytes come in two pieces."""
    data = values.tobytes()
    return Entry(name, dtype, values.shape, lambda: [data[:3], data[3:]])


def test_file_is_read_by_others_and_by_us(tmp_path: Path) -> None:
    arrays = {
        "mask": np.array([True, False, True]),
        "half": np.arange(6, dtype=np.float16).reshape(2, 3),
        "ids": np.arange(4, dtype=np.int64),
        "full": np.linspace(0, 1, 5, dtype=np.float32),
    }
    dtypes = {"mask": "BOOL", "half": "F16", "ids": "I64", "full": "F32"}
    path = tmp_path / "model.safetensors"
    write_safetensors(path, [entry(name, dtypes[name], arrays[name]) for name in arrays])
    for name, values in load_file(path).items():
        np.testing.assert_array_equal(values, arrays[name])
    assert read_safetensors(path).keys() == arrays.keys()
    np.testing.assert_array_equal(read_safetensors(path)["ids"].to_int64(), arrays["ids"])


def test_file_that_breaks_off_is_not_there(tmp_path: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield b"12"
        raise OSError(28, "No space left on device")

    path = tmp_path / "model.safetensors"
    with pytest.raises(OSError, match="No space"):
        write_safetensors(path, [Entry("x", "F32", (1,), broken)])
    assert not path.exists()
