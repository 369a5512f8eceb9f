"""The training engine's attention kernel, interpreted, against plain attention."""

import torch

from headlong.ops.torch.attention import AttentionShape, attend_plain, attend_triton


def make_block(
    num_heads: int, num_kv_heads: int, head_dim: int, window: int | None = None
) -> AttentionShape:
    """Return heads of one size, with a scale of their own."""
    return AttentionShape(
        num_heads, num_kv_heads, head_dim, head_dim, scale=0.7 * head_dim**-0.5, window=window
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
