"""Pointwise functions against plain formulas."""

import numpy as np
import torch

from headlong.train.pointwise import mix_scores, noise


def lowbias32(bits: int) -> int:
    """The hash in unsigned arithmetic."""
    bits ^= bits >> 16
    bits = bits * 0x7FEB352D & 0xFFFFFFFF
    bits ^= bits >> 15
    bits = bits * 0x846CA68B & 0xFFFFFFFF
    return bits ^ bits >> 16


def test_noise_equals_the_reference_hash() -> None:
    seeds, positions, ids = [5, 2**31 - 2], [0, 300], [0, 1, 49151]
    found = noise(torch.tensor(seeds), torch.tensor(positions), torch.tensor(ids)).numpy()
    for row, (seed, position) in enumerate(zip(seeds, positions, strict=True)):
        key = lowbias32(lowbias32(seed) + position * 0x9E3779B9 & 0xFFFFFFFF)
        for column, token_id in enumerate(ids):
            bits = lowbias32(key + token_id * 0x9E3779B9 & 0xFFFFFFFF)
            uniform = ((bits & 0xFFFFFF) + 0.5) * 2.0**-24
            np.testing.assert_allclose(found[row, column], -np.log(-np.log(uniform)), rtol=1e-4)


def test_picks_with_noise_follow_the_softmax() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0])
    num_draws = 20_000
    seeds = torch.arange(num_draws)
    gumbel = noise(seeds, torch.full((num_draws,), 9), torch.arange(3))
    shares = torch.bincount((logits + gumbel).argmax(-1), minlength=3) / num_draws
    np.testing.assert_allclose(shares.numpy(), logits.softmax(-1).numpy(), atol=0.015)


def test_chains_attend_to_the_past_and_themselves_only() -> None:
    torch.manual_seed(0)
    causal, own = torch.randn(1, 1, 1, 4, 4), torch.randn(1, 1, 1, 4, 2)
    probs, own_probs = mix_scores(causal, own, torch.arange(4)[None])
    for row in range(4):
        seen = torch.cat([causal[0, 0, 0, row, : row + 1], own[0, 0, 0, row]])
        expected = seen.softmax(-1)
        torch.testing.assert_close(probs[0, 0, 0, row, : row + 1], expected[:-2])
        torch.testing.assert_close(own_probs[0, 0, 0, row], expected[-2:])
        assert not probs[0, 0, 0, row, row + 1 :].any()
