"""A second model as drafter: reads along, drafts, forgets what was refused."""

from collections.abc import Callable

import numpy as np
import pytest

from fakes import ArgmaxGuesser
from headlong.arrays import FloatArray
from headlong.drafters.draft_model import READ_AT, DraftModelDrafter
from headlong.drafters.draft_plan import DraftPlan
from headlong.drafters.drafter import DraftRequest, ObservedRows
from headlong.models.transformer import Backbone

NOTHING: FloatArray = np.zeros((0, 0), np.float32)


@pytest.fixture
def backbone(tiny_backbone: Callable[[str], Backbone]) -> Backbone:
    """A tiny Llama."""
    return tiny_backbone("llama")


def greedy(backbone: Backbone, history: list[int], num_tokens: int) -> tuple[int, ...]:
    """Return the backbone's own next tokens, one full pass each."""
    ids = list(history)
    for _ in range(num_tokens):
        normed = backbone.forward([np.array(ids)], [backbone.make_cache()]).normed
        ids.append(int(backbone.logits(normed[-1:])[0].argmax()))
    return tuple(ids[len(history) :])


def settle(drafter: DraftModelDrafter, memory: object, token_ids: list[int]) -> None:
    """Tell the drafter that rows were settled."""
    ids = np.array(token_ids)
    drafter.observe([ObservedRows(memory, ids, (NOTHING,), ids)])


def test_draft_is_what_the_model_would_write(backbone: Backbone) -> None:
    drafter = DraftModelDrafter(backbone, backbone)
    history = list(range(10, 30))
    draft = drafter.draft([DraftRequest(drafter.begin(), history, DraftPlan(4), ArgmaxGuesser())])[
        0
    ]
    assert draft.token_ids == greedy(backbone, history, 4)
    assert draft.sources == ("draft-model",) * 4


def test_prompt_is_read_when_it_is_settled(backbone: Backbone) -> None:
    """Guards the prompt's time being booked, and averaged, as drafting."""
    drafter = DraftModelDrafter(backbone, backbone)
    memory = drafter.begin()
    prompt = [10 + i % 50 for i in range(READ_AT + 10)]
    settle(drafter, memory, prompt)
    assert memory.cache.length == len(prompt)


def test_a_few_settled_tokens_wait_for_the_draft(backbone: Backbone) -> None:
    drafter = DraftModelDrafter(backbone, backbone)
    memory = drafter.begin()
    settle(drafter, memory, [10, 11, 12])
    assert memory.cache.length == 0


def test_refused_tokens_are_forgotten(backbone: Backbone) -> None:
    drafter = DraftModelDrafter(backbone, backbone)
    memory = drafter.begin()
    history = list(range(10, 22))
    drafter.draft([DraftRequest(memory, history, DraftPlan(4), ArgmaxGuesser())])
    history += [5, 6]  # the backbone went another way
    draft = drafter.draft([DraftRequest(memory, history, DraftPlan(3), ArgmaxGuesser())])[0]
    assert draft.token_ids == greedy(backbone, history, 3)
