"""Native MTP layers draft what transformers does, at depths 1 to 3, prefix by prefix."""

import numpy as np
import pytest

from golden_models import CONVERTED, WITH_MTP, load_with_head, read_golden
from headlong.heads.nextn import NextnHead

CLOSE_CALL = {"numpy": 1e-3, "native": 0.1}
"""Margins that rounding may turn: native keeps keys and values in 16 bits."""


def draft(head: NextnHead, token_ids: list[int], newest: int, num_depths: int) -> list[int]:
    """Draft as if the token at `newest` were the newest of a text."""
    backbone, ids = head.backbone, np.array(token_ids)
    hidden = backbone.forward([ids[:newest]], [backbone.make_cache()])
    cache = head.make_cache()
    state = head.follow(head.features(hidden), [ids[1 : newest + 1]], [cache])
    cache.commit(cache.num_pending)
    drafted: list[int] = []
    for depth in range(num_depths):
        if depth:
            state = head.step(state, [np.array([drafted[-1]])], [cache])
        drafted.append(int(head.logits(state)[0].argmax()))
    return drafted


FILES = [(name, "") for name in WITH_MTP]
FILES += [(name, "converted.gguf") for name in CONVERTED if name in WITH_MTP]


@pytest.mark.parametrize("backend", ["numpy", "native"])
@pytest.mark.parametrize(("name", "file"), FILES)
def test_drafts_equal_those_of_transformers(name: str, backend: str, file: str) -> None:
    head = load_with_head(name, backend, file)
    assert isinstance(head, NextnHead)
    golden = read_golden(name)
    clear = [d for d in golden["drafts"] if d["smallest_margin"] > CLOSE_CALL[backend]]
    assert len(clear) >= len(golden["drafts"]) // 3
    for expected in clear:
        ids = expected["token_ids"]
        assert draft(head, golden["token_ids"], expected["newest"], len(ids)) == ids
