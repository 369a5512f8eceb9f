"""Rotary frequencies, plain and stretched."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headlong.errors import TensorError
from headlong.models.rope import divide_rope, make_rope
from headlong.models.rope_scaling import RopeScaling, read_gguf_scaling, read_rope_scaling
from headlong.models.settings import Settings


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


YARN = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 256}


@pytest.mark.parametrize(
    ("extra", "frequencies", "amplitude"),
    [
        ({}, [1.0, 0.4870278, 0.1063792, 0.006211617, 0.001111425, 1.111425e-05], 1.277259),
        (
            {"truncate": False, "mscale": 1.0, "mscale_all_dim": 0.707},
            [1.0, 0.511522, 0.1063764, 0.004144234, 0.001111425, 1.111425e-05],
            1.067923,
        ),
        (
            {"attention_factor": 0.9, "beta_fast": 8.0, "beta_slow": 2.0},
            [1.0, 0.5623413, 0.1361495, 0.001976424, 0.001111425, 1.111425e-05],
            0.9,
        ),
    ],
)
def test_yarn_is_that_of_transformers(
    extra: dict[str, Any], frequencies: list[float], amplitude: float
) -> None:
    """Numbers of transformers 5.22.2, pairs 0, 1, 3, 6, 7 and 15 of heads of 32."""
    scaling = read_rope_scaling(Settings(YARN | extra, Path("config.json")))
    rope = make_rope(32, 10_000.0, scaling)
    np.testing.assert_allclose(rope.frequencies[[0, 1, 3, 6, 7, 15]], frequencies, rtol=2e-6)
    assert rope.amplitude == pytest.approx(amplitude)


def test_yarn_in_gguf_metadata_means_the_same() -> None:
    ours = read_rope_scaling(Settings(YARN | {"beta_fast": 8.0}, Path("config.json")))
    keys = {
        "type": "yarn",
        "factor": 16.0,
        "original_context_length": 256,
        "yarn_beta_fast": 8.0,
    }
    settings = Settings(keys, Path("model.gguf"))
    assert read_gguf_scaling(settings) == ours
    settings = Settings(keys | {"yarn_log_multiplier": 0.1}, Path("model.gguf"))
    scaling = read_gguf_scaling(settings)
    assert scaling is not None
    assert scaling.amplitude == 1.0


@pytest.mark.parametrize(("head_dim", "theta"), [(2, 100.0), (8, 1.0)])
def test_yarn_without_a_ramp_changes_nothing(head_dim: int, theta: float) -> None:
    rope = make_rope(head_dim, theta, RopeScaling("yarn", 4.0, 1.0, 32.0, 64))
    assert np.array_equal(rope.frequencies, make_rope(head_dim, theta).frequencies)


def test_divisors_slow_each_pair_by_its_own() -> None:
    rope = divide_rope(make_rope(4, 100.0), np.array([1.0, 5.0], dtype=np.float32))
    np.testing.assert_allclose(rope.frequencies, [1, 0.02], rtol=1e-6)


def test_divisors_of_zero_are_refused() -> None:
    with pytest.raises(TensorError, match=r"rope_freqs\.weight"):
        divide_rope(make_rope(4, 100.0), np.array([1.0, 0.0], dtype=np.float32))
