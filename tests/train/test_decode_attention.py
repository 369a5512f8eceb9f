"""Attention over rows of different lengths: the plain truth, and the Triton kernel beside it."""

import importlib.util
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from headlong.train.decode_attention import attend_plain, choose_attention

INTERPRETED = """
import torch
from headlong.train.decode_attention import attend_plain, attend_triton
torch.manual_seed(0)
for heads, kv_heads, head_dim in ((9, 3, 64), (4, 4, 32)):
    query = torch.randn(5, heads, head_dim)
    keys, values = torch.randn(2, 5, kv_heads, 150, head_dim)
    lengths = torch.tensor([1, 63, 64, 65, 150], dtype=torch.int32)
    fast = attend_triton(query, keys, values, lengths)
    torch.testing.assert_close(fast, attend_plain(query, keys, values, lengths))
"""


def test_each_row_sees_only_its_own_length() -> None:
    torch.manual_seed(0)
    query, keys, values = torch.randn(3, 4, 8), torch.randn(3, 2, 10, 8), torch.randn(3, 2, 10, 8)
    lengths = torch.tensor([1, 6, 10])
    found = attend_plain(query, keys, values, lengths)
    for row, length in enumerate(lengths.tolist()):
        expected = F.scaled_dot_product_attention(
            query[row][:, None], keys[row, :, :length], values[row, :, :length], enable_gqa=True
        )
        torch.testing.assert_close(found[row], expected[:, 0])


def test_without_cuda_the_plain_one_is_taken() -> None:
    attend, words = choose_attention(torch.device("cpu"), wants_triton=True)
    assert attend is attend_plain
    assert "plain" in words


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_the_triton_kernel_equals_the_plain_one() -> None:
    """Runs in Triton's interpreter, which must be chosen before the kernel is imported."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", INTERPRETED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
