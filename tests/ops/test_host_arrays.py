"""Rows of numpy backends: joined, picked and handed over without needless copies."""

import numpy as np

from headlong.arrays import FloatArray
from headlong.ops.host_arrays import HostArrays


def rows(value: float, count: int) -> FloatArray:
    """Return equal rows."""
    return np.full((count, 2), value, dtype=np.float32)


def test_joined_rows_stand_under_one_another() -> None:
    arrays = HostArrays()
    assert arrays.join([rows(1, 2), rows(5, 1)])[:, 0].tolist() == [1, 1, 5]
    assert arrays.join([rows(1, 2), rows(5, 2)], axis=-1)[0].tolist() == [1, 1, 5, 5]
    alone = rows(3, 4)
    assert arrays.join([alone]) is alone, "nothing is copied where there is nothing to join"


def test_what_lies_on_the_host_is_not_copied_to_it() -> None:
    alone = rows(3, 4)
    assert HostArrays().to_host(alone) is alone


def test_rows_come_in_the_order_asked() -> None:
    found = HostArrays().rows(np.arange(8, dtype=np.float32).reshape(4, 2), (3, 0))
    assert found.tolist() == [[6, 7], [0, 1]]
