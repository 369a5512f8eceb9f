"""Triton's kernels, interpreted on the CPU, against the paged blocks in plain torch."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")
from triton_interpreter import interpreted  # needs both


def test_kernels_equal_the_plain_blocks() -> None:
    interpreted("interpreted_blocks")
