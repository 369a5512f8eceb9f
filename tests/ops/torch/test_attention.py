"""Attention over rows of different lengths: the plain truth, and the Triton kernel beside it."""

import importlib.util
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from headlong.ops.torch.attention import (
    attend_plain,
    attend_row,
    attend_sequences,
    choose_attention,
)
from interpreted_attention import make_block
from triton_interpreter import interpreted


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
    block = replace(make_block(4, 2, 8, window), value_dim=6, value_scale=0.7, sinks=sinks.numpy())
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
    interpreted("interpreted_attention")
