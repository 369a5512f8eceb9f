"""The teacher computes the same as the backbone of `models/`, for every kind of layer."""

import numpy as np
import pytest
import torch

from headlong.models.registry import load_backbone
from headlong.ops.numpy.ops import NumpyOps
from headlong.train.teacher import Teacher, can_compile, find_dtype, load_teacher
from headlong.weights.checkpoint import Checkpoint

CPU = torch.device("cpu")


def test_hidden_states_and_logits_equal_the_engines(
    every_checkpoint: Checkpoint, every_teacher: Teacher
) -> None:
    """Per-layer embeddings and logit caps included; tolerances are relative."""
    backbone = load_backbone(every_checkpoint, NumpyOps()).backbone
    ids = np.random.default_rng(5).integers(0, 60, (2, 23))
    expected = backbone.forward(list(ids), [backbone.make_cache() for _ in ids])
    hidden = every_teacher.forward(torch.from_numpy(ids))
    wanted = backbone.logits(expected.normed)
    found = every_teacher.logits(hidden.normed).numpy()
    assert np.abs(hidden.raw.numpy() - expected.raw).max() <= 2e-4 * np.abs(expected.raw).max()
    assert np.abs(found - wanted).max() <= 2e-4 * np.abs(wanted).max()
    some = torch.tensor([3, 9, 40])
    torch.testing.assert_close(
        every_teacher.scorer(some)(hidden.normed), torch.from_numpy(found)[:, some]
    )


def test_every_layer_also_runs_in_bfloat16(
    every_checkpoint: Checkpoint, every_teacher: Teacher
) -> None:
    teacher = load_teacher(every_checkpoint, CPU, compile=False, dtype=torch.bfloat16)
    ids = torch.from_numpy(np.random.default_rng(5).integers(0, 60, (2, 23)))
    hidden, expected = teacher.forward(ids, (1,)), every_teacher.forward(ids, (1,))
    assert hidden.normed.dtype == torch.bfloat16
    differences = (hidden.normed.float() - expected.normed).norm(dim=1)
    # Rounding may send a row to another expert, so not every row is near.
    assert (differences / expected.normed.norm(dim=1)).median() < 0.1


def test_bfloat16_is_taken_where_the_device_multiplies_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_dtype("float32", CPU) is torch.float32
    assert find_dtype("bfloat16", CPU) is torch.bfloat16
    assert find_dtype("auto", torch.device("cuda")) is torch.bfloat16
    for has_it, expected in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda has_it=has_it: has_it)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
        assert find_dtype("auto", CPU) is expected


def test_without_a_compiler_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(function: object) -> None:
        raise RuntimeError("no C++ compiler")

    monkeypatch.setattr(torch, "compile", fail)
    assert not can_compile(CPU)
    assert can_compile(torch.device("cuda"))
