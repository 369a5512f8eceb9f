"""Tile sizes of the Triton kernels, measured on an H200. They change speed and never a bit.

In:  rows, and what a matrix is. Out: a tile.
"""

from typing import NamedTuple

FEW_ROWS = 16
"""Up to so many rows are multiplied by `rows_kernel`, whose products are 16 rows high anyway."""

KEY_BLOCK = 128
"""Keys of one softmax. Part of the result: every kernel has the same."""

MANY_PROGRAMS = 264
"""Two for every multiprocessor of an H200: with fewer, a row's keys are shared among programs."""

MOST_SHARES = 64

MOST_MATES = 64
"""Up to so many rows are turned by the kernel that attends."""


class Tile(NamedTuple):
    """What one program computes, and how."""

    rows: int
    outputs: int
    inputs: int
    stages: int
    warps: int
    lines: int = 0
    """Lines of 128 bytes of each output's weights (chunks of levels) to read ahead, at most."""


class Weights(NamedTuple):
    """What a choice depends on, of a matrix."""

    outputs: int
    inputs: int
    bits: int
    is_gated: bool = False


class Tiles:
    """The choices; a measurement may set others."""

    def few_rows(self, weights: Weights) -> Tile:
        """Return the tile of a product with at most `FEW_ROWS` rows."""
        if weights.bits <= 8:
            # A warp unpacks eight outputs: 32 are the fewest that four warps share. Chunks must
            # fill a step, also where there are two inputs.
            outputs = 32 if weights.outputs < 8192 else 64
            return Tile(FEW_ROWS, outputs, 64 if weights.inputs % 256 else 128, 4, 4, 8)
        if weights.bits > 16:
            return Tile(FEW_ROWS, 16, 32, 2, 4)
        if weights.inputs <= 2048 and weights.outputs < 8192:
            return Tile(FEW_ROWS, 16, 64, 6, 4, 32)
        if weights.is_gated:
            return Tile(FEW_ROWS, 32, 128, 4, 4, 8)
        return Tile(FEW_ROWS, 64 if weights.outputs >= 8192 else 32, 128, 5, 4, 8)

    def many_rows(self, num_rows: int, weights: Weights) -> Tile:
        """Return the tile of a product with more rows."""
        if weights.bits > 16:
            return Tile(32, 32, 32, 2, 4)
        if num_rows <= 64:
            rows = 32 if num_rows <= 32 else 64
            return Tile(rows, 32 if weights.outputs >= 4096 else 16, 64, 5, 4)
        if num_rows <= 256 or weights.outputs < 2048:
            return Tile(64, 64, 64, 4, 4)
        if weights.is_gated:
            return Tile(128, 128, 64, 3, 8)
        return Tile(128, 256 if weights.bits == 16 else 128, 64, 3, 8)

    def shares(self, num_programs: int, num_blocks: int) -> int:
        """Return how many programs share the keys of one row and key head."""
        wanted = -(-MANY_PROGRAMS // num_programs)
        return min(1 << (wanted - 1).bit_length(), MOST_SHARES, num_blocks)

    def rows_together(self, num_rows: int, members: int) -> int:
        """Return how many rows one program attends from."""
        return max(16 // members, 1) if num_rows <= 256 else max(64 // members, 1)
