"""Packed rows: what a projection would read of them, in less memory."""

import numpy as np
import pytest

from headlong.arrays import FloatArray
from headlong.ops.host_ops import HostOps, PackedRows
from headlong.ops.native.host import NativeHost
from headlong.ops.numpy.host import NumpyHost, PlainRows

NATIVE: HostOps = NativeHost()


def some_rows(num_rows: int, num_columns: int, seed: int = 0) -> FloatArray:
    """Return rows of very different sizes."""
    rng = np.random.default_rng(seed)
    sizes = 10.0 ** rng.integers(-6, 6, (num_rows, 1))
    return (sizes * rng.normal(size=(num_rows, num_columns))).astype(np.float32)


def packed(rows: FloatArray) -> PackedRows:
    """Return all rows, packed."""
    found = NATIVE.make_rows()
    NATIVE.pack_rows(rows, [(found, 0, len(rows))])
    return found


@pytest.fixture(params=[NativeHost, NumpyHost])
def host(request: pytest.FixtureRequest) -> HostOps:
    """Both kinds of rows: packed by kernels, and as they are."""
    made: HostOps = request.param()
    return made


@pytest.mark.parametrize("num_columns", [1, 31, 32, 33, 576, 1728])
def test_rows_come_back_to_eight_bits_of_their_group(num_columns: int) -> None:
    rows = some_rows(7, num_columns)
    read = packed(rows).read()
    assert read.shape == rows.shape
    for first in range(0, num_columns, 32):
        group = slice(first, first + 32)
        largest = np.abs(rows[:, group]).max(axis=1, keepdims=True)
        assert (np.abs(read - rows)[:, group] <= 0.501 * largest / 127).all()


def test_packing_again_changes_next_to_nothing() -> None:
    once = packed(some_rows(5, 1728)).read()
    np.testing.assert_allclose(packed(once).read(), once, rtol=1e-6)


def test_rows_of_one_pass_go_to_those_they_belong_to(host: HostOps) -> None:
    mine, yours = host.make_rows(), host.make_rows()
    first, second = some_rows(70, 64, seed=1), some_rows(9, 64, seed=2)
    host.pack_rows(first, [(mine, 0, 33), (yours, 33, 70)])
    host.pack_rows(second, [(yours, 2, 3), (mine, 4, 9)])
    assert (len(mine), len(yours)) == (38, 38)
    for found, expected in (
        (mine, np.concatenate([first[:33], second[4:]])),
        (yours, np.concatenate([first[33:], second[2:3]])),
    ):
        largest = np.abs(expected).max(axis=1, keepdims=True)
        assert (np.abs(found.read() - expected) <= 0.01 * largest).all()


@pytest.mark.parametrize("num_kept", [0, 1, 31, 32, 33, 70])
def test_leading_rows_stay_or_go_to_somebody_else(host: HostOps, num_kept: int) -> None:
    rows = host.make_rows()
    host.pack_rows(some_rows(70, 40), [(rows, 0, 70)])
    before = rows.read()
    shared = rows.first_rows(num_kept)
    rows.truncate(num_kept)
    more = some_rows(3, 40, seed=3)
    host.pack_rows(more, [(rows, 0, 3)])
    assert (len(shared), len(rows)) == (num_kept, num_kept + 3)
    np.testing.assert_array_equal(shared.read()[:, :40], before[:num_kept])
    np.testing.assert_array_equal(rows.read()[:num_kept], before[:num_kept])
    np.testing.assert_allclose(rows.read()[num_kept:], more, atol=0.01 * np.abs(more).max())


def test_packed_rows_take_less_than_a_third() -> None:
    rows = packed(some_rows(4, 1728))
    assert rows.bytes_for(320) == 320 * 1728 * 36 // 32
    assert rows.bytes_for(0) == NATIVE.make_rows().bytes_for(9) == 0


def test_bytes_of_plain_rows_are_those_of_their_numbers() -> None:
    rows = PlainRows()
    assert rows.bytes_for(9) == 0
    rows.append(some_rows(2, 40))
    assert rows.bytes_for(5) == 5 * 40 * 4


def test_what_is_no_number_stays_none() -> None:
    rows = some_rows(2, 64)
    rows[1, 40] = np.inf
    read = packed(rows).read()
    assert np.isfinite(read[0]).all()
    assert np.isfinite(read[1, :32]).all()
    assert np.isnan(read[1, 32:]).all()


def test_rows_of_nothing_take_nothing() -> None:
    rows = packed(np.zeros((3, 8), np.float32)[:, :0])
    assert (len(rows), rows.bytes_for(3)) == (3, 0)
    assert rows.read().shape == (3, 0)


def test_malformed_rows_are_refused_and_nothing_is_kept() -> None:
    rows = packed(some_rows(2, 8))
    fresh = NATIVE.make_rows()
    with pytest.raises(ValueError, match="differ in length"):
        NATIVE.pack_rows(some_rows(1, 9), [(fresh, 0, 1), (rows, 0, 1)])
    for first, stop in ((-1, 1), (1, 0), (0, 3)):
        with pytest.raises(ValueError, match="not so many rows"):
            NATIVE.pack_rows(some_rows(2, 8), [(fresh, 0, 2), (rows, first, stop)])
    for num_rows in (-1, 3):
        with pytest.raises(ValueError, match="not so many rows"):
            rows.truncate(num_rows)
        with pytest.raises(ValueError, match="not so many rows"):
            rows.first_rows(num_rows)
    assert (len(rows), len(fresh)) == (2, 0)
