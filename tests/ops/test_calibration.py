"""What probabilities are worth: a range for each of them, and none for what is no number."""

import math

import pytest

from headlong.ops import _native
from headlong.ops.calibration import EDGES, Calibration

RISING = Calibration(tuple(place / len(EDGES) for place in range(len(EDGES) + 1)))


def test_what_lies_on_an_edge_belongs_to_the_range_above() -> None:
    assert RISING(0.0) == 0.0
    assert RISING(1.0) == 1.0
    for place, edge in enumerate(EDGES):
        assert RISING(math.nextafter(edge, 0.0)) == place / len(EDGES)
        assert RISING(edge) == (place + 1) / len(EDGES)


def test_no_number_is_worth_no_number() -> None:
    assert math.isnan(RISING(math.nan))


def test_malformed_tables_are_refused() -> None:
    with pytest.raises(ValueError, match="one more than the edges"):
        _native.Calibration(EDGES, EDGES)
    with pytest.raises(ValueError, match="must ascend"):
        _native.Calibration([0.5, 0.1], [0.0, 0.5, 1.0])
