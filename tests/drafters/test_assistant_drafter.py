"""The assistant as a drafter: it reads the backbone's state, writes nothing, remembers one row."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from assistant_files import assistant_maker
from headlong.cache.sequence_state import SequenceState
from headlong.config import SamplingParams
from headlong.decode.sampling import Sampler
from headlong.drafters.assistant_drafter import AssistantDrafter
from headlong.drafters.draft_plan import DraftPlan, Threshold
from headlong.drafters.drafter import Draft, DraftRequest, ObservedRows
from headlong.drafters.head_drafter import HeadMemory
from headlong.models.transformer import Backbone
from headlong.ops.numpy.weights import NumpyKVLayer
from model_files import GEMMA4

TEXT = [3, 17, 42, 5, 63, 30, 8, 17, 42, 11, 59, 22, 36, 7, 90]

Maker = Callable[[str], Backbone]


@pytest.fixture(params=[GEMMA4, f"{GEMMA4}@native"])
def drafter(
    tiny_backbone: Maker, tmp_path: Path, request: pytest.FixtureRequest
) -> AssistantDrafter:
    """An assistant on either backend."""
    return assistant_maker(tmp_path)(tiny_backbone(request.param))


def backbone_of(drafter: AssistantDrafter) -> Backbone:
    """Return the backbone of a drafter's head."""
    backbone: Backbone = drafter.head.backbone  # type: ignore[attr-defined]  # Gemma4Assistant
    return backbone


def begin(
    drafter: AssistantDrafter, text: list[int], cuts: list[int]
) -> tuple[HeadMemory, SequenceState]:
    """Run a text but for its last token, in passes that end at `cuts`, as prefill does."""
    backbone = backbone_of(drafter)
    memory, cache, start = drafter.begin(), backbone.make_cache(), 0
    for stop in cuts:
        ids = np.array(text[start:stop])
        hidden = backbone.forward([ids], [cache])
        next_ids = np.array(text[start + 1 : stop + 1])
        drafter.observe([ObservedRows(memory, ids, (drafter.features(hidden),), next_ids)])
        cache.commit(len(ids))
        start = stop
    return memory, cache


def ask(
    memory: HeadMemory, text: list[int], cache: SequenceState, threshold: Threshold | None = None
) -> DraftRequest:
    """Ask for five tokens."""
    thresholds = {} if threshold is None else {"head": threshold}
    sampler = Sampler(SamplingParams(), text, 96)
    return DraftRequest(memory, text, DraftPlan(5, thresholds), sampler, (), cache)


def draft(drafter: AssistantDrafter, text: list[int], cuts: list[int]) -> Draft:
    """Draft behind a text."""
    memory, cache = begin(drafter, text, cuts)
    return drafter.draft([ask(memory, text, cache)])[0]


def test_passes_of_a_prompt_change_no_draft(drafter: AssistantDrafter) -> None:
    whole = draft(drafter, TEXT, [14])
    assert len(whole.token_ids) == 5
    assert draft(drafter, TEXT, [1, 2, 9, 14]) == draft(drafter, TEXT, [13, 14]) == whole


def test_batch_mates_change_no_draft(drafter: AssistantDrafter) -> None:
    texts = [TEXT, TEXT[:4], TEXT[3:], [5, 6]]
    asks = [ask(memory, text, cache) for text in texts for memory, cache in [_begun(drafter, text)]]
    assert drafter.draft(asks) == [draft(drafter, text, [len(text) - 1]) for text in texts]


def test_an_unsure_mate_drops_out_alone(drafter: AssistantDrafter) -> None:
    memory, cache = _begun(drafter, TEXT)
    other, other_cache = _begun(drafter, TEXT[:6])
    unsure = ask(memory, TEXT, cache, Threshold(0.0, 2.0))
    short, long = drafter.draft([unsure, ask(other, TEXT[:6], other_cache)])
    assert (len(short.token_ids), short.is_uncertain) == (1, True)
    assert long == draft(drafter, TEXT[:6], [5])


def test_drafting_writes_nothing(tiny_backbone: Maker, tmp_path: Path) -> None:
    drafter = assistant_maker(tmp_path)(tiny_backbone(GEMMA4))
    memory, cache = _begun(drafter, TEXT)
    layers = [layer for layer in cache.layers if isinstance(layer, NumpyKVLayer)]
    before = [(layer.keys.tobytes(), layer.values.tobytes()) for layer in layers]
    drafter.draft([ask(memory, TEXT, cache)])
    assert [(layer.keys.tobytes(), layer.values.tobytes()) for layer in layers] == before
    assert (cache.length, cache.num_pending) == (14, 0)
    assert drafter.num_bytes(memory, 1000) == 0


def test_a_shared_memory_drafts_once_it_has_seen_a_row(drafter: AssistantDrafter) -> None:
    memory, cache = _begun(drafter, TEXT)
    shared = drafter.share(memory, 9)
    forked = cache.fork(9, backbone_of(drafter).make_cache)
    text = [*TEXT[:10], 77]
    assert drafter.draft([ask(shared, TEXT[:10], forked)])[0].token_ids == ()
    hidden = backbone_of(drafter).forward([np.array(text[9:10])], [forked])
    rows = ObservedRows(
        shared, np.array(text[9:10]), (drafter.features(hidden),), np.array(text[10:])
    )
    drafter.observe([rows])
    forked.commit(1)
    assert drafter.draft([ask(shared, text, forked)])[0] == draft(drafter, text, [10])


def test_memory_holds_one_row_and_not_the_pass_it_came_from(
    tiny_backbone: Maker, tmp_path: Path
) -> None:
    drafter = assistant_maker(tmp_path)(tiny_backbone(GEMMA4))
    state = _begun(drafter, TEXT)[0].state
    assert state is not None
    assert state.base is None or state.base.size == state.size


def _begun(drafter: AssistantDrafter, text: list[int]) -> tuple[HeadMemory, SequenceState]:
    return begin(drafter, text, [len(text) - 1])
