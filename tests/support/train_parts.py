"""What tests of training have in common: a call on the CPU, and answers to generate."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headlong.arrays import IntArray
from headlong.train.chains import StartRows, place_starts
from headlong.train.pipeline import RunOptions
from headlong.train.sampler import Job
from headlong.train.teacher import Teacher
from headlong.train.torch_head import TorchHead


def cpu_options(model: Path, folder: Path, prompt_file: Path, **others: Any) -> RunOptions:
    """One call with everything in one folder, the same on every processor."""
    return RunOptions(
        model,
        folder / "work",
        folder / "out",
        (prompt_file,),
        device="cpu",
        dtype="float32",
        compile=False,
        **others,
    )


def some_jobs(count: int, vocab_size: int) -> list[Job]:
    """Prompts of many lengths at several temperatures."""
    rng = np.random.default_rng(2)

    def prompt() -> IntArray:
        return rng.integers(8, vocab_size, int(rng.integers(1, 70)))

    return [
        Job(prompt(), int(rng.integers(1, 12)), (0.0, 0.7, 1.0)[i % 3], seed=i * 17)
        for i in range(count)
    ]


def assert_equal_from_some_rows(head: TorchHead, teacher: Teacher, ids: IntArray) -> None:
    """Compare chains that start from some rows with those from all rows: logits and gradients."""
    assert ids.shape == (3, 17)
    firsts, counts, padding = (4, 22, 40), (9, 12, 1), 5
    rows = np.concatenate([np.arange(f, f + n) for f, n in zip(firsts, counts, strict=True)])
    owners = np.repeat(np.arange(3), counts)
    padded, of_padded = np.pad(rows, (0, padding)), np.pad(owners, (0, padding), constant_values=-1)
    starts = place_starts(padded, of_padded, 3, teacher.device)
    tokens = torch.from_numpy(ids)
    with torch.no_grad():
        hidden = teacher.forward(tokens, head.tap_layers)

    def run(starts: StartRows | None, kept: IntArray) -> tuple[Tensor, dict[str, Tensor]]:
        head.zero_grad()
        states = head.rollout(hidden, tokens, starts)
        logits = torch.stack([head.logits(next(states), depth)[kept] for depth in range(1, 5)])
        logits.square().mean().backward()
        named = head.named_parameters()
        return logits.detach(), {name: one.grad for name, one in named if one.grad is not None}

    found, gradients = run(starts, np.arange(len(rows)))
    expected, expected_gradients = run(None, rows)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert gradients.keys() == expected_gradients.keys()
    for name, one in expected_gradients.items():
        scale = float(one.abs().max())
        torch.testing.assert_close(gradients[name], one, rtol=1e-3, atol=1e-4 * scale, msg=name)
