"""A native head drafts from fewer tokens where a text's own tokens say that it pays."""

from dataclasses import replace

import numpy as np
import pytest

from golden_models import NUM_FREQUENT, load_with_head, with_fewer_tokens
from headlong.config import DraftVocabularyName, SamplingParams
from headlong.decode.sampling import Sampler
from headlong.drafters.draft_plan import DraftPlan
from headlong.drafters.drafter import Draft, DraftRequest, ObservedRows
from headlong.drafters.head_drafter import HeadMemory, RecursiveDrafter
from headlong.heads import draft_vocabulary
from headlong.heads.draft_vocabulary import choose_ids
from headlong.heads.nextn import NextnHead
from headlong.models.transformer import Backbone


def make_head(backend: str, name: DraftVocabularyName = "auto") -> NextnHead:
    """Return the golden head with a smaller vocabulary beside its own."""
    head = load_with_head("tiny-qwen3_5", backend)
    assert isinstance(head, NextnHead)
    return with_fewer_tokens(head, "tiny-qwen3_5", name)


def read(drafter: RecursiveDrafter, backbone: Backbone, text: list[int]) -> HeadMemory:
    """Let the drafter observe a text but for its last token."""
    ids = np.array(text)
    hidden = backbone.forward([ids[:-1]], [backbone.make_cache()], drafter.tap_layers)
    memory = drafter.begin()
    drafter.observe([ObservedRows(memory, ids[:-1], (drafter.features(hidden),), ids[1:])])
    return memory


def draft(drafter: RecursiveDrafter, backbone: Backbone, texts: list[list[int]]) -> list[Draft]:
    """Draft five tokens after each text, all in one call."""
    vocab_size = backbone.config.vocab_size
    return drafter.draft(
        [
            DraftRequest(
                read(drafter, backbone, text),
                text,
                DraftPlan(5),
                Sampler(SamplingParams(), text, vocab_size),
            )
            for text in texts
        ]
    )


def test_frequent_and_added_tokens_are_drafted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_vocabulary, "SIZE", 4)
    ids = choose_ids("auto", 10, {9, 2, 12})
    assert ids is not None
    assert ids.tolist() == [0, 1, 2, 3, 9]
    assert choose_ids("full", 10, ()) is None
    assert choose_ids("auto", 7, ()) is None, "too few would be left out"


@pytest.mark.parametrize("backend", ["numpy", "native"])
def test_every_text_chooses_its_own_vocabulary(backend: str) -> None:
    """Side by side, a text of the vocabulary's tokens and one of others."""
    head = make_head(backend)
    assert head.fewer_tokens is not None
    assert 0 < head.fewer_tokens.least_share < 1
    rng = np.random.default_rng(3)
    inside = rng.integers(0, NUM_FREQUENT, 80).tolist()
    outside = rng.integers(NUM_FREQUENT, 63, 80).tolist()
    drafter = RecursiveDrafter(head)
    both = draft(drafter, head.backbone, [inside, outside])
    full = RecursiveDrafter(replace(head, fewer_tokens=None))
    assert both[1] == draft(full, head.backbone, [outside])[0]
    assert max(both[0].token_ids) in {*range(NUM_FREQUENT), 63}
    pruned = RecursiveDrafter(make_head(backend, "pruned"))
    found = draft(pruned, head.backbone, [outside])[0]
    assert {*found.token_ids} <= {*range(NUM_FREQUENT), 63}, "asked for, it does not go by the text"


def test_drafts_among_fewer_tokens_are_the_best_of_them() -> None:
    head = make_head("numpy", "pruned")
    text = np.random.default_rng(4).integers(0, NUM_FREQUENT, 40).tolist()
    found = draft(RecursiveDrafter(head), head.backbone, [text])[0]
    memory = read(RecursiveDrafter(head), head.backbone, text)
    assert head.fewer_tokens is not None
    state = memory.state
    assert state is not None
    logits = head.logits(state[None])[0]
    ids = head.fewer_tokens.ids
    assert found.token_ids[0] == ids[logits[ids].argmax()]


def test_share_follows_the_newest_tokens() -> None:
    head = make_head("numpy")
    drafter = RecursiveDrafter(head)
    memory = read(drafter, head.backbone, [1] * 70 + [40] * 65)
    assert memory.share == 0.0
    memory = read(drafter, head.backbone, [1, *[40] * 32])
    assert memory.share == pytest.approx(0.5)
