"""The training engine's attention kernel, interpreted, against plain attention."""

import numpy as np
import torch

from headlong.models.rope import make_rope
from headlong.ops.blocks import Attention, Linear, Norm
from headlong.ops.torch_attention import attend_plain, attend_triton


def make_block(
    num_heads: int, num_kv_heads: int, head_dim: int, window: int | None = None
) -> Attention:
    """Return a block of which only sizes, scale and window matter."""
    none = Linear(None)
    return Attention(
        Norm(np.ones(1, np.float32), 1e-5),
        *(none, none, none, none),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rope=make_rope(head_dim, 1e4),
        scale=0.7 * head_dim**-0.5,
        window=window,
    )


def main() -> None:
    """Compare heads of several sizes, with and without a window."""
    torch.manual_seed(0)
    for heads, kv_heads, head_dim, window in ((9, 3, 64, None), (4, 4, 32, None), (4, 1, 256, 70)):
        block = make_block(heads, kv_heads, head_dim, window)
        query = torch.randn(5, heads, head_dim)
        keys, values = torch.randn(2, 5, kv_heads, 150, head_dim)
        lengths = torch.tensor([1, 63, 64, 65, 150], dtype=torch.int32)
        fast = attend_triton(query, keys, values, lengths, block)
        torch.testing.assert_close(fast, attend_plain(query, keys, values, lengths, block))
