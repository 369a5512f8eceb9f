"""The teacher computes the same as the backbone of `models/`, for every kind of layer."""

import numpy as np
import torch

from headlong.models.registry import load_backbone
from headlong.ops.numpy.ops import NumpyOps
from headlong.train.teacher import Teacher
from headlong.weights.checkpoint import Checkpoint


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
