"""Quantisation-aware training computes with exactly the weights that are packed later."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headlong.heads.head_weights import store_array
from headlong.ops.native.ops import NativeOps
from headlong.train.pointwise import make_pointwise, round_to_q4
from headlong.train.projection import (
    Projection,
    effective_parameters,
    enable_qat,
    round_once,
)
from headlong.weights.mlx_groups import pack_matrix

PLAIN = make_pointwise(compile=False)


def random_weight(outputs: int, inputs: int) -> Tensor:
    """Weights of many magnitudes; those of one group are equal."""
    torch.manual_seed(3)
    weight = torch.randn(outputs, inputs) * torch.logspace(-4, 1, outputs)[:, None]
    weight[0, :32] = 0.25
    return weight


def test_rounding_equals_packing_and_unpacking() -> None:
    weight = random_weight(24, 96)
    ops = NativeOps()
    packed = ops.matrix(store_array("test.weight", weight.numpy()), "q4")
    unpacked = ops.embed(packed, np.arange(24))
    np.testing.assert_allclose(round_to_q4(weight).numpy(), unpacked, rtol=1e-6, atol=1e-9)
    assert not np.allclose(weight.numpy(), unpacked)


def test_rounding_again_changes_nothing_that_packing_would_see() -> None:
    rounded = round_to_q4(random_weight(8, 64))
    torch.testing.assert_close(round_to_q4(rounded), rounded, rtol=2e-3, atol=1e-6)


def test_qat_multiplies_rounded_weights_and_trains_the_unrounded() -> None:
    layer = Projection(64, 8, bias=False)
    enable_qat(nn.Sequential(layer), PLAIN)
    x = torch.randn(5, 64)
    y = layer(x)
    torch.testing.assert_close(y, F.linear(x, round_to_q4(layer.weight.detach())))
    assert not torch.allclose(y, F.linear(x, layer.weight))
    y.sum().backward()
    assert layer.weight.grad is not None
    torch.testing.assert_close(layer.weight.grad, x.sum(0).expand(8, 64))


def test_a_step_rounds_once_for_all_depths_and_the_next_step_rounds_again() -> None:
    layer = Projection(64, 8, bias=False)
    head = nn.Sequential(layer)
    enable_qat(head, PLAIN)
    roundings: list[Tensor] = []

    def round_weight(weight: Tensor) -> Tensor:
        roundings.append(weight)
        return round_to_q4(weight)

    layer.round_weight = round_weight
    optimiser = torch.optim.AdamW(head.parameters(), lr=0.1)
    x = torch.randn(5, 64)
    for step in range(2):
        with round_once(head):
            deep = layer(x).sum() + 2 * layer(2 * x).sum()
        optimiser.zero_grad()
        deep.backward()
        assert len(roundings) == step + 1
        assert layer.weight.grad is not None
        torch.testing.assert_close(layer.weight.grad, 5 * x.sum(0).expand(8, 64))
        optimiser.step()
        torch.testing.assert_close(layer(x), F.linear(x, round_to_q4(layer.weight.detach())))
        roundings.pop()


def test_rows_that_are_not_whole_groups_are_not_rounded() -> None:
    layer = Projection(40, 8, bias=False)
    enable_qat(nn.Sequential(layer), PLAIN)
    x = torch.randn(5, 40)
    torch.testing.assert_close(layer(x), F.linear(x, layer.weight))


def test_a_file_gets_the_rounded_weights() -> None:
    head = nn.Sequential(Projection(64, 8), Projection(40, 8))
    enable_qat(head, PLAIN)
    found = dict(effective_parameters(head))
    assert found.keys() == dict(head.named_parameters()).keys()
    torch.testing.assert_close(found["0.weight"], round_to_q4(head[0].weight.detach()))
    assert not torch.equal(found["0.weight"], head[0].weight)
    for name in ("0.bias", "1.weight", "1.bias"):
        assert torch.equal(found[name], head.get_parameter(name))


def test_packed_file_has_exactly_the_levels_that_were_trained() -> None:
    head = nn.Sequential(Projection(64, 48))
    enable_qat(head, PLAIN)
    trained = dict(effective_parameters(head))["0.weight"].numpy()
    stored = pack_matrix(store_array("0.weight", trained)).to_float32()
    np.testing.assert_allclose(stored, trained, rtol=2e-7, atol=1e-8)
