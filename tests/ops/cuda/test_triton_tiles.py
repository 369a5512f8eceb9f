"""Tiles of products: what kernels cannot do without."""

import pytest

from headlong.ops.cuda.triton_tiles import Tiles, Weights


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("num_parts", [1, 2])
def test_steps_of_levels_are_whole_chunks_of_each_input(bits: int, num_parts: int) -> None:
    """Kernels read levels without asking where a row ends."""
    for width in range(64, 8192, 64):
        for outputs in (64, 960, 4096, 128_256):
            weights = Weights(outputs, num_parts * width, bits)
            tiles = [Tiles().few_rows(weights)]
            tiles += [Tiles().many_rows(count, weights) for count in (17, 64, 256, 2048)]
            assert not any(width % tile.inputs for tile in tiles), (width, outputs)
