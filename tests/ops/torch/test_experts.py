"""Mixtures of experts in torch: the oracle's numbers, and batch invariance in bytes."""

import numpy as np
import pytest
import torch

from headlong.ops.numpy.ops import NumpyOps
from headlong.ops.torch.experts import _project_wide
from headlong.ops.torch.ops import TorchOps
from native_parts import EXPERT_KINDS, Parts, random

CPU = torch.device("cpu")


@pytest.mark.parametrize("is_exact", [True, False])
@pytest.mark.parametrize("kind", [*EXPERT_KINDS, "squared"])
def test_channel_parts_equal_the_oracle(kind: str, is_exact: bool) -> None:
    x, results = random(1, 13, 64), []
    for ops in (NumpyOps(), TorchOps(CPU, is_exact=is_exact)):
        parts = Parts(ops, "F32")
        block = parts.squared_mlp() if kind == "squared" else parts.experts(kind)
        given = torch.tensor(x) if isinstance(ops, TorchOps) else x
        results.append(np.asarray(ops.transform(given, block)))
    np.testing.assert_allclose(results[1], results[0], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", EXPERT_KINDS)
def test_what_is_beside_a_row_changes_no_bit(kind: str, dtype: torch.dtype) -> None:
    ops = TorchOps(CPU, dtype)
    block, x = Parts(ops, "F32").experts(kind), torch.tensor(random(2, 20, 64)).to(dtype)
    whole = ops.transform(x, block)
    for first in range(0, len(x), 3):
        assert ops.transform(x[first : first + 3], block).equal(whole[first : first + 3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mixed_precision_leaves_the_choice_of_experts_in_float32(dtype: torch.dtype) -> None:
    """Training runs layers in it on CUDA; a rounded score would choose other experts."""
    ops = TorchOps(CPU, dtype, is_exact=False)
    router, x = Parts(ops, "F32").experts("qwen").router, torch.tensor(random(3, 20, 64)).to(dtype)
    expected = _project_wide(ops, x, router.linear)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert _project_wide(ops, x, router.linear).equal(expected)
    assert expected.dtype == torch.float32
