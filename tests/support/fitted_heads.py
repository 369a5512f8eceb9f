"""Heads of a tiny model that really draft well, without training: only the LM head is fitted.

A random layer makes features of what it reads; a ridge regression then finds the LM head that names
the next token from them, on answers the tiny backbone gave. Read the head another way than it was
fitted, and its drafts fall apart.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from headlong.arrays import FloatArray
from headlong.doctor.probe import ProbeRows
from headlong.heads.eagle3 import Eagle3Head
from headlong.heads.head_files import build_head
from headlong.heads.head_weights import HeadWeights, store_arrays
from headlong.heads.nextn import NextnHead
from headlong.models.transformer import Backbone
from headlong.ops.blocks import Linear

RIDGE = 1e-5
TOKENS_HEARD = 96


def fit_head(weights: HeadWeights, backbone: Backbone, probed: Sequence[ProbeRows]) -> HeadWeights:
    """Return a recursive head whose LM head names the tokens of these answers, two depths deep."""
    head = build_head(weights, backbone)
    assert isinstance(head, NextnHead | Eagle3Head)
    identity = np.eye(backbone.config.hidden_size, dtype=np.float32)
    stored = store_arrays({"lm_head.weight": identity}, "float32")["lm_head.weight"]
    seeing = replace(head, lm_head=Linear(backbone.ops.matrix(stored)))
    features: list[FloatArray] = []
    targets: list[int] = []
    for one in probed:
        seen, ids = _features(seeing, one)
        features += seen
        targets += ids
    x = np.concatenate(features).astype(np.float64)
    wanted = np.eye(backbone.config.vocab_size)[targets]
    solved = np.linalg.solve(x.T @ x + RIDGE * len(x) * np.eye(x.shape[1]), x.T @ wanted)  # (H, V)
    lm_head = store_arrays({"lm_head.weight": solved.T.astype(np.float32)}, "float32")
    return replace(weights, tensors={**weights.tensors, **lm_head})


def _features(
    head: NextnHead | Eagle3Head, probed: ProbeRows
) -> tuple[list[FloatArray], list[int]]:
    """Return what the LM head reads at depths 1 and 2 of every position, and the true tokens."""
    ids = probed.token_ids
    hidden = probed.with_taps(head.tap_layers).rows(0, len(ids) - 1)
    cache = head.make_cache()
    carried = head.step(head.enter(head.features(hidden)), [ids[1:]], [cache])
    cache.commit(len(ids) - 1)
    features, targets = [], []
    for position in range(len(probed.text.prompt_ids) - 1, len(ids) - 3):
        drafting = cache.fork(position + 1, head.make_cache)
        state = carried[position : position + 1]
        deeper = head.step(state, [ids[position + 2 : position + 3]], [drafting])
        features += [head.logits(state), head.logits(deeper)]
        targets += ids[position + 2 : position + 4].tolist()
    return features, targets
