"""Whether kernels do on this card what they are written to do: a look before they are used.

In:  the paged blocks of a backend, and a layer of the model that is to run on them.
Out: why they are not to be trusted, or None. Takes a second beyond the compilation, which the first
pass would need anyway. No test without a card can see what a driver or another card makes of them.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headlong.ops.blocks import Layer
from headlong.ops.cuda.paged_blocks import DeviceRows, PagedBlocks
from headlong.ops.cuda.plain_paged_blocks import PlainPagedBlocks

if TYPE_CHECKING:
    from headlong.ops.torch.ops import TorchOps

_NUM_ROWS = 23
_CUTS: tuple[tuple[int, ...], ...] = ((20,), (3, 19, 21), tuple(range(1, _NUM_ROWS)))
"""Where the rows are cut into passes: many and a few, few, one by one."""

_TOLERANCE = 0.05
"""Of the largest number. Kernels and plain torch round at different places, to 8 bits each time."""


def why_not_trusted(ops: "TorchOps", paged: PagedBlocks, layer: Layer) -> str | None:
    """Compare a layer with plain torch, and its rows' bits in passes of several sizes."""
    if type(paged) is PlainPagedBlocks:
        return None
    generator = torch.Generator(ops.device).manual_seed(0)
    size = (2, _NUM_ROWS, len(layer.attention.norm.weight))
    inputs = torch.randn(size, generator=generator, device=ops.device).to(ops.dtype)
    found = _run(paged, layer, inputs, ())
    wanted = _run(PlainPagedBlocks(ops), layer, inputs, ()).float()
    away = float((found.float() - wanted).abs().max() / wanted.abs().max())
    if not away < _TOLERANCE:
        return f"its kernels differ from plain torch by {away:.2g} of the largest number"
    for cuts in _CUTS:
        if not torch.equal(_run(paged, layer, inputs, cuts), found):
            return f"a row's bits change with the size of its pass (cut at {cuts[0]})"
    return None


def _run(paged: PagedBlocks, layer: Layer, inputs: Tensor, cuts: Sequence[int]) -> Tensor:
    """Run the rows of one slot through a layer, in passes."""
    (pages,) = paged.make_pages([layer], 2)
    x, beside = inputs
    results = []
    for start, stop in zip((0, *cuts), (*cuts, _NUM_ROWS), strict=True):
        positions = torch.arange(start, stop, dtype=torch.int32, device=x.device)
        slots = torch.zeros_like(positions)
        rows = DeviceRows(positions, positions, slots, torch.ones_like(slots[:1])[:, None])
        results.append(paged.run_layer(x[start:stop], layer, pages, rows, beside[start:stop]))
    return torch.cat(results)
