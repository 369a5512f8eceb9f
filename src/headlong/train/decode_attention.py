"""Attention of one new token per row over that row's own cache, however long it is.

In:  queries (B, heads, D); keys and values (B, kv_heads, T, D) of which row b has `lengths[b]`.
Out: (B, heads, D). On CUDA a Triton kernel reads exactly the entries a row has, so that short rows
do not pay for long ones; `attend_plain` is the truth beside it and what the CPU uses.
"""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

try:
    from headlong.train.decode_kernel import attend_kernel
except ImportError:  # a CPU build of torch comes without Triton
    attend_kernel = None

AttendRows: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

_BLOCK = 64
_MIN_QUERIES = 16  # the fewest rows a tensor-core product takes


def attend_plain(query: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
    """Attend with full score rows and a mask."""
    batch, kv_heads, capacity, head_dim = keys.shape
    grouped = query.view(batch, kv_heads, -1, head_dim)
    scores = (grouped @ keys.transpose(-1, -2)).float() * head_dim**-0.5  # (B, KV, G, T)
    is_beyond = torch.arange(capacity, device=keys.device)[None] >= lengths[:, None]
    probs = scores.masked_fill(is_beyond[:, None, None], float("-inf")).softmax(-1)
    return (probs.to(values.dtype) @ values).view(query.shape)


def attend_triton(query: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
    """Attend with one program per row and key head."""
    batch, kv_heads, capacity, head_dim = keys.shape
    out = torch.empty_like(query)
    attend_kernel[(batch, kv_heads)](
        query,
        keys,
        values,
        out,
        lengths,
        capacity,
        head_dim**-0.5 * 1.4426950408889634,  # exp2 is what the hardware has
        KV_HEADS=kv_heads,
        GROUP=query.shape[1] // kv_heads,
        QUERIES=max(_MIN_QUERIES, 1 << (query.shape[1] // kv_heads - 1).bit_length()),
        HEAD_DIM=head_dim,
        BLOCK=_BLOCK,
        num_warps=2,
        num_stages=3,
    )
    return out


def choose_attention(device: torch.device, *, wants_triton: bool) -> tuple[AttendRows, str]:
    """Return the fastest attention that gives the right numbers here, and a word about it."""
    if device.type != "cuda" or not wants_triton:
        return attend_plain, "plain attention"
    if attend_kernel is None:
        return attend_plain, "plain attention (triton is not installed)"
    try:
        difference = _compare(device)
    except Exception as error:  # any compiler failure: generation must go on, only slower
        return attend_plain, f"plain attention (the Triton kernel failed: {error!r:.300})"
    if not difference < 0.02:
        return attend_plain, f"plain attention (the Triton kernel is off by {difference:.3g})"
    return attend_triton, f"Triton attention (differs by {difference:.1e} from the plain one)"


def _compare(device: torch.device) -> float:
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device).bfloat16()

    query, keys, values = normal(8, 9, 64), normal(8, 3, 300, 64), normal(8, 3, 300, 64)
    lengths = torch.tensor([1, 2, 63, 64, 65, 150, 299, 300], device=device, dtype=torch.int32)
    fast = attend_triton(query, keys, values, lengths)
    slow = attend_plain(query.float(), keys.float(), values.float(), lengths)
    return float((fast.float() - slow).abs().max())
