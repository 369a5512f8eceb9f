"""What tests of training have in common: a call on the CPU, and answers to generate."""

from pathlib import Path
from typing import Any

import numpy as np

from headlong.arrays import IntArray
from headlong.train.pipeline import RunOptions
from headlong.train.sampler import Job


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
