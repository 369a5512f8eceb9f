"""Attention over rows of different lengths: the plain truth, and the Triton kernel beside it."""

import importlib.util
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from headlong.models.rope import make_rope
from headlong.ops.blocks import Attention, Linear, Norm
from headlong.ops.torch_attention import (
    attend_plain,
    attend_row,
    attend_sequences,
    choose_attention,
)

INTERPRETED = """
import torch
from headlong.ops.torch_attention import attend_plain, attend_triton
from tests.ops.test_torch_attention import make_block
torch.manual_seed(0)
for heads, kv_heads, head_dim, window in ((9, 3, 64, None), (4, 4, 32, None), (4, 1, 256, 70)):
    block = make_block(heads, kv_heads, head_dim, window)
    query = torch.randn(5, heads, head_dim)
    keys, values = torch.randn(2, 5, kv_heads, 150, head_dim)
    lengths = torch.tensor([1, 63, 64, 65, 150], dtype=torch.int32)
    fast = attend_triton(query, keys, values, lengths, block)
    torch.testing.assert_close(fast, attend_plain(query, keys, values, lengths, block))
"""


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


@pytest.mark.parametrize("window", [None, 4])
def test_each_row_sees_only_its_own_entries(window: int | None) -> None:
    torch.manual_seed(0)
    query, keys, values = torch.randn(3, 4, 8), torch.randn(3, 2, 10, 8), torch.randn(3, 2, 10, 8)
    lengths = torch.tensor([1, 6, 10])
    block = make_block(4, 2, 8, window)
    found = attend_plain(query, keys, values, lengths, block)
    for row, length in enumerate(lengths.tolist()):
        seen = slice(0 if window is None else max(0, length - window), length)
        expected = F.scaled_dot_product_attention(
            query[row][:, None],
            keys[row, :, seen],
            values[row, :, seen],
            scale=block.scale,
            enable_gqa=True,
        )
        torch.testing.assert_close(found[row], expected[:, 0])


@pytest.mark.parametrize("window", [None, 4])
def test_sinks_take_their_shares_on_every_way(window: int | None) -> None:
    """Whole sequences, one row of each, and a cache read row by row give the same."""
    torch.manual_seed(0)
    query, keys = torch.randn(2, 4, 10, 8), torch.randn(2, 2, 10, 8)
    values, sinks = torch.randn(2, 2, 10, 6), torch.randn(4)
    block = replace(make_block(4, 2, 8, window), value_size=6, value_scale=0.7, sinks=sinks.numpy())
    together = attend_sequences(query, keys, values, block)
    lengths = torch.tensor([10, 10])
    last = attend_plain(query[:, :, -1], keys, values, lengths, block)
    torch.testing.assert_close(together[:, :, -1], last)
    first = 0 if window is None else 6
    for row in range(2):
        scores = query[row, :, -1:] @ keys[row].repeat_interleave(2, 0)[:, first:].transpose(1, 2)
        weights = torch.exp(scores[:, 0] * block.scale)  # (heads, T)
        shares = weights / (weights.sum(-1, keepdim=True) + torch.exp(sinks)[:, None])
        expected = shares[:, None] @ values[row].repeat_interleave(2, 0)[:, first:] * 0.7
        torch.testing.assert_close(last[row], expected[:, 0])
        alone = attend_row(query[row, :, -1], keys[row], values[row], 9, block)
        torch.testing.assert_close(alone, expected.reshape(-1))


def test_without_cuda_the_plain_one_is_taken() -> None:
    attend, words = choose_attention(torch.device("cpu"), [make_block(4, 2, 8)], wants_triton=True)
    assert attend is attend_plain
    assert "plain" in words


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_the_triton_kernel_equals_the_plain_one() -> None:
    """Runs in Triton's interpreter, which must be chosen before the kernel is imported."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", INTERPRETED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
