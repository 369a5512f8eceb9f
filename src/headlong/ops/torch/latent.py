"""Latent attention in torch: heads ask and read in the space of the latent vectors.

In exact mode attention and the products with the heads' own matrices go row by row, so that their
shapes depend on the block and on the row's position alone; `latent_heads` takes all rows together.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from headlong.ops.blocks import LatentAttention
from headlong.ops.layer_state import LayerState
from headlong.ops.op_set import Ops, Rows
from headlong.ops.torch.attention import HeadRows
from headlong.ops.torch.maths import Angles, rotate
from headlong.ops.torch.weights import TorchKVLayer


def mix_latent(
    ops: Ops,
    x: Tensor,
    block: LatentAttention,
    states: Sequence[LayerState | None],
    rows: Rows,
    angles: Angles,
) -> Tensor:
    """Norm, queries and latent vectors, cache write, attend, values of the heads, project, add."""
    heads, keys, latent = _project(ops, x, block, angles)
    key_up = _by_head(block.key_up.weight.values, block)  # (heads, rank, plain_dim)
    plain = heads[..., : block.plain_dim, None]
    asked = torch.stack([(key_up @ row.contiguous())[..., 0] for row in plain])
    queries = torch.cat([asked, heads[..., block.plain_dim :]], -1)  # (N, heads, rank + R)
    value_up = _by_head(block.value_up.weight.values, block)  # (heads, value_dim, rank)
    attended: list[Tensor] = []
    for span, layer in zip(rows.spans, states, strict=True):
        assert isinstance(layer, TorchKVLayer)
        own = slice(span.first_row, span.first_row + span.num_rows)
        layer.write(span.first_position, keys[own], latent[own])
        for position, query in enumerate(queries[own], span.first_position):
            read = _read(query, layer, position, block.scale)
            attended.append((value_up @ read[..., None]).view(-1))
    result: Tensor = ops.project(torch.stack(attended), block.output)
    return x + result


def latent_heads(ops: Ops, x: Tensor, block: LatentAttention, angles: Angles) -> HeadRows:
    """Return what heads ask with, and rows' one key and value, all rows together."""
    heads, keys, latent = _project(ops, x, block, angles)
    plain, turned = heads.split([block.plain_dim, block.rotary_dim], -1)
    key_up = _by_head(block.key_up.weight.values, block)  # (heads, rank, plain_dim)
    asked = torch.einsum("nhp,hrp->nhr", plain, key_up)
    return HeadRows(torch.cat([asked, turned], -1), keys, latent, None)


def add_latent(ops: Ops, x: Tensor, attended: Tensor, block: LatentAttention) -> Tensor:
    """Add the values that heads make of what they read, all rows together: (N, heads * rank)."""
    value_up = _by_head(block.value_up.weight.values, block)  # (heads, value_dim, rank)
    read = attended.view(len(x), block.num_heads, -1)
    values = torch.einsum("nhr,hvr->nhv", read, value_up).reshape(len(x), -1)
    result: Tensor = ops.project(values, block.output)
    return x + result


def _project(
    ops: Ops, x: Tensor, block: LatentAttention, angles: Angles
) -> tuple[Tensor, Tensor, Tensor]:
    """Return query heads, (N, heads, plain + R), keys, (N, 1, rank + R), and latent vectors."""
    normed: Tensor = ops.norm(x, block.norm)
    kept = ops.project(normed, block.latent)
    latent = ops.norm(kept[:, : block.rank].contiguous(), block.latent_norm)[:, None]
    keys = torch.cat([latent, rotate(kept[:, None, block.rank :], *angles)], -1)
    if block.query_down is not None:
        assert block.query_norm is not None
        normed = ops.norm(ops.project(normed, block.query_down), block.query_norm)
    heads = ops.project(normed, block.query).view(len(normed), block.num_heads, -1)
    plain, turning = heads.split([block.plain_dim, block.rotary_dim], -1)
    return torch.cat([plain, rotate(turning, *angles)], -1), keys, latent


def _read(query: Tensor, layer: TorchKVLayer, position: int, scale: float) -> Tensor:
    """Attend from one row over all latent vectors up to it: (heads, rank + R) → (heads, rank)."""
    # Contiguous: the room a cache has must not decide which kernel is taken.
    keys = layer.keys[0, : position + 1].contiguous()  # (L, rank + R)
    values = layer.values[0, : position + 1].contiguous()  # (L, rank)
    scores = (query.contiguous() @ keys.T).float() * scale  # (heads, L)
    return scores.softmax(-1).to(values.dtype) @ values


def _by_head(matrix: Tensor, block: LatentAttention) -> Tensor:
    return matrix.view(block.num_heads, -1, matrix.shape[1])
