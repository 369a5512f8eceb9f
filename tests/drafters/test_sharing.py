"""Sharing: a memory taken over from another sequence drafts like one that saw the rows itself."""

from collections.abc import Callable

import numpy as np
import pytest

from fakes import ArgmaxGuesser
from headlong.drafters.draft_plan import DraftPlan
from headlong.drafters.drafter import Draft, Drafter, DraftRequest, DraftState, ObservedRows
from headlong.models.hidden import HiddenRows
from headlong.models.transformer import Backbone
from model_files import HYBRIDS
from random_drafters import drafter_named
from random_heads import HEAD_KINDS

TEXT = [5, 9, 9, 5, 9, 9, 5, 17, 30, 5, 9, 9, 5, 21, 22, 23, 5, 9]
NAMES = ("ngram", "draft-model", *HEAD_KINDS, *(f"chain-{kind}" for kind in HEAD_KINDS))


def rows_of(backbone: Backbone, drafter: Drafter, token_ids: list[int]) -> HiddenRows:
    """Run tokens through the backbone."""
    return backbone.forward([np.array(token_ids)], [backbone.make_cache()], drafter.tap_layers)


def observe(drafter: Drafter, state: DraftState, text: list[int], hidden: HiddenRows) -> None:
    """Let a drafter see all rows of a text from where its memory ends to the last but one."""
    first = len(text) - 1 - len(hidden.raw)
    token_ids, next_ids = np.array(text[first:-1]), np.array(text[first + 1 :])
    drafter.observe([ObservedRows(state, token_ids, (drafter.features(hidden),), next_ids)])


def draft(drafter: Drafter, state: DraftState, text: list[int]) -> Draft:
    """Draft behind a text."""
    return drafter.draft([DraftRequest(state, text, DraftPlan(4), ArgmaxGuesser())])[0]


@pytest.mark.parametrize("num_rows", [1, 7, 16])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("architecture", ["llama", *HYBRIDS])
def test_shared_memory_drafts_the_same(
    tiny_backbone: Callable[[str], Backbone], architecture: str, name: str, num_rows: int
) -> None:
    backbone = tiny_backbone(architecture)
    drafter = drafter_named(name, backbone)
    hidden = rows_of(backbone, drafter, TEXT[:-1])
    alone = drafter.begin()
    observe(drafter, alone, TEXT, hidden)

    # Another sequence has the first tokens in common and went on differently.
    other_text = [*TEXT[: num_rows + 1], 40, 41, 42]
    other = drafter.begin()
    observe(drafter, other, other_text, rows_of(backbone, drafter, other_text[:-1]))
    before = draft(drafter, other, other_text)
    shared = drafter.share(other, num_rows)
    observe(drafter, shared, TEXT, hidden.rows(num_rows, len(TEXT) - 1))

    assert draft(drafter, shared, TEXT) == draft(drafter, alone, TEXT)
    assert draft(drafter, other, other_text) == before, "the lender goes on as if nothing had been"


@pytest.mark.parametrize("name", NAMES)
def test_promised_bytes_are_the_bytes_taken(
    tiny_backbone: Callable[[str], Backbone], name: str
) -> None:
    backbone = tiny_backbone("llama")
    drafter = drafter_named(name, backbone)
    state = drafter.begin()
    promised = drafter.num_bytes(state, len(TEXT) - 1)
    observe(drafter, state, TEXT, rows_of(backbone, drafter, TEXT[:-1]))
    draft(drafter, state, TEXT)
    assert drafter.num_bytes(state) == promised
    assert (promised == 0) == (name in ("ngram", "medusa", "chain-medusa"))
