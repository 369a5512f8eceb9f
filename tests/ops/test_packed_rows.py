"""Packed rows: what a projection would read of them, in less memory."""

import numpy as np
import pytest

from headlong.arrays import FloatArray
from headlong.ops import _native
from headlong.ops.packed_rows import PlainRows, pack_rows


def some_rows(num_rows: int, num_columns: int, seed: int = 0) -> FloatArray:
    """Return rows of very different sizes."""
    rng = np.random.default_rng(seed)
    sizes = 10.0 ** rng.integers(-6, 6, (num_rows, 1))
    return (sizes * rng.normal(size=(num_rows, num_columns))).astype(np.float32)


@pytest.mark.parametrize("num_columns", [1, 31, 32, 33, 576, 1728])
def test_rows_come_back_to_eight_bits_of_their_group(num_columns: int) -> None:
    rows = some_rows(7, num_columns)
    packed = _native.PackedRows([rows[:2], rows[2:3], rows[3:]])
    assert (len(packed), packed.shape) == (7, rows.shape)
    read = packed.read(0, 7)
    for first in range(0, num_columns, 32):
        group = slice(first, first + 32)
        largest = np.abs(rows[:, group]).max(axis=1, keepdims=True)
        assert (np.abs(read - rows)[:, group] <= 0.501 * largest / 127).all()


def test_packing_again_changes_next_to_nothing() -> None:
    once = _native.PackedRows([some_rows(5, 1728)]).read(0, 5)
    twice = _native.PackedRows([once]).read(0, 5)
    np.testing.assert_allclose(twice, once, rtol=1e-6)


def test_packed_rows_take_less_than_a_third() -> None:
    rows = some_rows(4, 1728)
    assert _native.PackedRows([rows]).nbytes == rows.nbytes * 36 // 128


def test_some_rows_can_be_read() -> None:
    packed = _native.PackedRows([some_rows(6, 64)])
    np.testing.assert_array_equal(packed.read(2, 5), packed.read(0, 6)[2:5])
    assert packed.read(3, 3).shape == (0, 64)
    for first, stop in ((-1, 2), (3, 2), (0, 7)):
        with pytest.raises(ValueError, match="not so many rows"):
            packed.read(first, stop)


def test_what_is_no_number_stays_none() -> None:
    rows = some_rows(2, 64)
    rows[1, 40] = np.inf
    read = _native.PackedRows([rows]).read(0, 2)
    assert np.isfinite(read[0]).all()
    assert np.isfinite(read[1, :32]).all()
    assert np.isnan(read[1, 32:]).all()


def test_rows_of_nothing_take_nothing() -> None:
    packed = _native.PackedRows([np.zeros((3, 8), np.float32)[:, :0]])
    assert (len(packed), packed.nbytes) == (3, 0)
    assert packed.read(0, 3).shape == (3, 0)


def test_malformed_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="no rows"):
        _native.PackedRows([])
    with pytest.raises(ValueError, match="differ in length"):
        _native.PackedRows([some_rows(1, 8), some_rows(1, 9)])


def test_without_kernels_rows_stay_as_they_are() -> None:
    rows = some_rows(5, 40)
    plain = PlainRows(rows)
    assert (len(plain), plain.shape, plain.nbytes) == (5, (5, 40), rows.nbytes)
    np.testing.assert_array_equal(plain.read(1, 4), rows[1:4])
    assert isinstance(pack_rows([rows]), _native.PackedRows)
