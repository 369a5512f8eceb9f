"""Rotary frequencies, plain and stretched."""

import numpy as np
import pytest

from headlong.errors import TensorError
from headlong.models.model_config import RopeScaling
from headlong.models.rope import divide_rope, make_rope


def test_frequencies_fall_from_one() -> None:
    frequencies = make_rope(8, 10_000.0).frequencies
    np.testing.assert_allclose(frequencies, [1, 0.1, 0.01, 0.001], rtol=1e-6)


def test_linear_scaling_slows_all_alike() -> None:
    plain, slow = make_rope(8, 100.0), make_rope(8, 100.0, RopeScaling("linear", 4.0))
    np.testing.assert_allclose(slow.frequencies * 4, plain.frequencies, rtol=1e-6)


def test_llama3_scaling_leaves_fast_pairs_alone() -> None:
    scaling = RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)
    ratio = make_rope(64, 500_000.0, scaling).frequencies / make_rope(64, 500_000.0).frequencies
    assert ratio[0] == pytest.approx(1)
    assert ratio[-1] == pytest.approx(1 / 8)
    assert np.all(np.diff(ratio) <= 1e-6)


def test_divisors_slow_each_pair_by_its_own() -> None:
    rope = divide_rope(make_rope(4, 100.0), np.array([1.0, 5.0], dtype=np.float32))
    np.testing.assert_allclose(rope.frequencies, [1, 0.02], rtol=1e-6)


def test_divisors_of_zero_are_refused() -> None:
    with pytest.raises(TensorError, match=r"rope_freqs\.weight"):
        divide_rope(make_rope(4, 100.0), np.array([1.0, 0.0], dtype=np.float32))
