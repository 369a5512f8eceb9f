"""Whether kernels do on this card what they are written to do: a look before they are used.

In:  the paged blocks of a backend, and a layer of the model that is to run on them.
Out: why they are not to be trusted, or None. Takes a second beyond the compilation, which the first
pass would need anyway. No test without a card can see what a driver or another card makes of them.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headlong.ops.blocks import Layer
from headlong.ops.cuda.paged_blocks import PAGE_SIZE, DeviceRows, PagedBlocks
from headlong.ops.cuda.plain_paged_blocks import PlainPagedBlocks
from headlong.ops.cuda.triton_tiles import KEY_BLOCK

if TYPE_CHECKING:
    from headlong.ops.torch.ops import TorchOps

_NUM_ROWS = 23
_CUTS: tuple[tuple[int, ...], ...] = ((20,), (3, 19, 21), tuple(range(1, _NUM_ROWS)))
"""Where the rows are cut into passes: many and a few, few, one by one."""

_MOST_PAGES = 2 * KEY_BLOCK // PAGE_SIZE
_PLACES = ((0, 1), (KEY_BLOCK - 11, _MOST_PAGES))
"""Where the rows begin, and how many pages they look at: programs share a row's keys only where
there is room for more than one block of them. The second rows' keys lie in two blocks."""

_TOLERANCE = 0.05
"""Of the largest number. Kernels and plain torch round at different places, to 8 bits each time."""


def why_not_trusted(ops: "TorchOps", paged: PagedBlocks, layer: Layer) -> str | None:
    """Compare a layer with plain torch, and its rows' bits in passes of several sizes."""
    if type(paged) is PlainPagedBlocks:
        return None
    generator = torch.Generator(ops.device).manual_seed(0)
    size = (2, _NUM_ROWS, len(layer.attention.norm.weight))
    inputs = torch.randn(size, generator=generator, device=ops.device).to(ops.dtype)
    for first, num_pages in _PLACES:
        found = _run(paged, layer, inputs, (), first, num_pages)
        wanted = _run(PlainPagedBlocks(ops), layer, inputs, (), first, num_pages).float()
        away = float((found.float() - wanted).abs().max() / wanted.abs().max())
        if not away < _TOLERANCE:
            return f"its kernels differ from plain torch by {away:.2g} of the largest number"
        for cuts in _CUTS:
            if not torch.equal(_run(paged, layer, inputs, cuts, first, _MOST_PAGES), found):
                return f"a row's bits change with the size of its pass (cut at {cuts[0]})"
    return None


def _run(
    paged: PagedBlocks,
    layer: Layer,
    inputs: Tensor,
    cuts: Sequence[int],
    first: int,
    num_pages: int,
) -> Tensor:
    """Run the rows of one slot through a layer, in passes; rows before the first one are zeros."""
    x, beside = inputs
    (pages,) = paged.make_pages([layer], num_pages + 1)
    table = torch.arange(num_pages, 0, -1, dtype=torch.int32, device=x.device)[None]
    results = []
    for start, stop in pairwise((0, *cuts, _NUM_ROWS)):
        positions = torch.arange(start, stop, dtype=torch.int32, device=x.device) + first
        rows = DeviceRows(positions, positions, torch.zeros_like(positions), table)
        results.append(paged.run_layer(x[start:stop], layer, pages, rows, beside[start:stop]))
    return torch.cat(results)
