"""Which rows generate answers on a CPU."""

from dataclasses import replace

import pytest
import torch

from headlong.ops.torch.ops import TorchOps
from headlong.train import rows
from headlong.train.engine_sampler import MAX_ROWS, EngineSampler
from headlong.train.recipe import AnswerRecipe
from headlong.train.rows import RowMaker
from headlong.train.sampler import Sampler
from headlong.train.teacher import Teacher
from headlong.weights.checkpoint import Checkpoint


def make(teacher: Teacher, checkpoint: Checkpoint) -> RowMaker:
    """What makes rows for a model that ends its texts with token 7."""
    return RowMaker(teacher, checkpoint, frozenset({7}), wants_triton=True)


def test_the_engine_generates_on_a_cpu(tiny_teacher: Teacher, tiny_checkpoint: Checkpoint) -> None:
    maker = make(tiny_teacher, tiny_checkpoint)
    generator = maker.generator(4, 64)
    assert isinstance(generator, EngineSampler)
    assert (generator.num_rows, generator.note.startswith("native")) == (4, True)
    assert isinstance(maker.sampler(4, 64), Sampler)
    assert maker.num_rows(AnswerRecipe(num_rows=2048)) == MAX_ROWS
    assert maker.num_rows(AnswerRecipe(num_rows=8)) == 8


def test_torch_generates_without_native_kernels(
    tiny_teacher: Teacher, tiny_checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "backend_problem", lambda name: "There is no compiler.")
    maker = make(tiny_teacher, tiny_checkpoint)
    assert isinstance(maker.generator(4, 64), Sampler)
    assert maker.num_rows(AnswerRecipe(num_rows=2048)) == 2048


def test_torch_generates_on_a_gpu(tiny_teacher: Teacher, tiny_checkpoint: Checkpoint) -> None:
    ops = TorchOps(is_exact=False)
    ops.device = torch.device("cuda")
    assert not make(replace(tiny_teacher, ops=ops), tiny_checkpoint).uses_engine
