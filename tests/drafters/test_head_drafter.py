"""A head's draft made in one call is the draft made depth by depth, token for token."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import model_files
from headlong.config import SamplingParams
from headlong.decode.sampling import Sampler
from headlong.drafters.draft_plan import NO_THRESHOLD, DraftPlan, Threshold
from headlong.drafters.drafter import Draft, DraftRequest, ObservedRows
from headlong.drafters.head_drafter import HeadMemory, RecursiveDrafter
from headlong.errors import HeadError
from headlong.heads.head import RecursiveHead
from headlong.heads.head_files import build_head
from headlong.heads.head_weights import HeadWeights
from headlong.heads.nextn_families import NextnSwitches
from headlong.llm import LLM
from headlong.models.registry import load_backbone
from headlong.models.transformer import Backbone
from headlong.ops.calibration import EDGES, Calibration
from headlong.ops.op_set import DraftRow
from headlong.weights.checkpoint import open_checkpoint
from native_parts import INSTRUCTION_SETS, native_ops
from random_heads import random_eagle3, random_nextn

RULES = (
    SamplingParams(),
    SamplingParams(temperature=0.7, seed=3),
    SamplingParams(temperature=1e-4, seed=4),
    SamplingParams(temperature=1.5, top_p=0.8, seed=5),
    SamplingParams(temperature=0.9, top_k=20, min_p=0.1, seed=2**63),
)
HEADS = ("eagle3", "eagle3-whole", "eagle3-normed", "nextn", "nextn-normed", "nextn-state-first")
LENGTHS = (70, 9, 40)
"""Tokens of the sequences; the first one's draft crosses a chunk of attention."""
EVEN = Calibration((0.5,) * (len(EDGES) + 1))
"""Every token has the same chance, whatever its probability."""


def make_head(kind: str, backbone: Backbone) -> RecursiveHead:
    """Build a random head; "whole" ones draft from all tokens."""
    config, half = backbone.config, backbone.config.vocab_size // 2
    weights: dict[str, HeadWeights] = {
        "eagle3": random_eagle3(config, draft_vocab_size=half),
        "eagle3-whole": random_eagle3(config),
        "eagle3-normed": random_eagle3(config),
        "nextn": random_nextn(config, draft_vocab_size=half, layer="qwen2"),
        "nextn-normed": random_nextn(config, switches=NextnSwitches(carried="normed")),
        "nextn-state-first": random_nextn(config, switches=NextnSwitches(concat="hidden_first")),
    }
    norms = dict.fromkeys(("norm_before_residual", "norm_output"), kind == "eagle3-normed")
    own = replace(weights[kind], config={**weights[kind].config, **norms})
    head = build_head(own, backbone)
    assert isinstance(head, RecursiveHead)
    return head


def make_drafter(path: Path, kind: str, instruction_set: str, threads: int) -> RecursiveDrafter:
    """Load a model on the kernels and give it a head."""
    ops = native_ops(instruction_set, threads)
    backbone = load_backbone(open_checkpoint(path), ops).backbone
    return RecursiveDrafter(make_head(kind, backbone))


def begin(drafter: RecursiveDrafter, backbone: Backbone, token_ids: Sequence[int]) -> HeadMemory:
    """Let the drafter observe a text but for its last token."""
    ids = np.array(token_ids)
    hidden = backbone.forward([ids[:-1]], [backbone.make_cache()], drafter.tap_layers)
    memory = drafter.begin()
    drafter.observe([ObservedRows(memory, ids[:-1], (drafter.features(hidden),), ids[1:])])
    return memory


def make_asks(
    drafter: RecursiveDrafter,
    backbone: Backbone,
    params: SamplingParams,
    threshold: Threshold = NO_THRESHOLD,
) -> list[DraftRequest]:
    """Ask for drafts of different lengths after different texts."""
    rng = np.random.default_rng(1)
    vocab_size = backbone.config.vocab_size
    texts = [rng.integers(0, vocab_size, length).tolist() for length in LENGTHS]
    return [
        DraftRequest(
            begin(drafter, backbone, text),
            text,
            DraftPlan(num_tokens, {"head": threshold}),
            Sampler(params, text, vocab_size),
        )
        for text, num_tokens in zip(texts, (7, 1, 4), strict=True)
    ]


def by_depth(drafter: RecursiveDrafter, asks: Sequence[DraftRequest]) -> list[Draft]:
    """Draft without the backend's help."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drafter, "_ops", None)
        return drafter.draft(asks)


def assert_same(drafts: Sequence[Draft], expected: Sequence[Draft]) -> None:
    for draft, other in zip(drafts, expected, strict=True):
        assert draft.token_ids == other.token_ids
        assert (draft.num_steps, draft.is_uncertain) == (other.num_steps, other.is_uncertain)
        np.testing.assert_allclose(draft.probs, other.probs, rtol=1e-5)


def check_draft(
    drafter: RecursiveDrafter, params: SamplingParams, threshold: Threshold
) -> list[Draft]:
    """Hold a draft of several sequences against the slow one, and against each made alone."""
    backbone = drafter.head.backbone  # type: ignore[attr-defined]  # every head has one
    asks = make_asks(drafter, backbone, params, threshold)
    drafts = drafter.draft(asks)
    assert all(draft.token_ids for draft in drafts)
    assert_same(drafts, by_depth(drafter, asks))
    assert drafts == [drafter.draft([ask])[0] for ask in asks]  # whoever else drafts, in every bit
    for ask in asks:
        cache = ask.state.cache
        assert (cache.length, cache.num_pending) == (len(ask.history) - 1, 0)
    return drafts


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_one_call_makes_the_draft_of_many(
    tiny_model_path: Path, kind: str, instruction_set: str
) -> None:
    for threads in (1, 3):
        drafter = make_drafter(tiny_model_path, kind, instruction_set, threads)
        for params in RULES:
            check_draft(drafter, params, NO_THRESHOLD)
            check_draft(drafter, params, Threshold(0.0, 1e-5))
            drafts = check_draft(drafter, params, Threshold(0.0, 0.2, EVEN))
            assert [draft.num_steps for draft in drafts] == [3, 1, 3], (
                "0.5 ** 3 is below the threshold"
            )


def test_draft_with_the_backbones_lm_head_is_capped_as_its_logits_are(tmp_path: Path) -> None:
    """Greedy drafts do not need that, but probabilities and noise do."""
    path = model_files.write_gguf(tmp_path / "m.gguf", model_files.GEMMA4)
    backbone = load_backbone(open_checkpoint(path), native_ops("auto", 2)).backbone
    head = make_head("nextn-normed", backbone)  # without an LM head of its own
    normed = backbone.forward([np.arange(9)], [backbone.make_cache()]).normed
    assert np.array_equal(head.logits(normed), backbone.logits(normed))
    drafter = RecursiveDrafter(head)
    for params in RULES:
        check_draft(drafter, params, NO_THRESHOLD)


def test_shipped_head_drafts_the_same_in_one_call(default_llm: LLM) -> None:
    assert isinstance(default_llm.head, RecursiveHead)
    drafter = RecursiveDrafter(default_llm.head)
    text = default_llm.encode([{"role": "user", "content": "Count from one to ten in words."}])
    memory = begin(drafter, default_llm.backbone, text)
    vocab_size = default_llm.backbone.config.vocab_size
    for params in RULES:
        ask = DraftRequest(memory, list(text), DraftPlan(6), Sampler(params, text, vocab_size))
        assert_same(drafter.draft([ask]), by_depth(drafter, [ask]))


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(repetition_penalty=1.3),
        SamplingParams(temperature=0.7, presence_penalty=0.5),
        SamplingParams(logit_bias={5: 4.0}),
    ],
)
def test_history_and_bias_are_left_to_the_sampler(
    tiny_model_path: Path, params: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = make_drafter(tiny_model_path, "eagle3", "auto", 2)
    backbone = drafter.head.backbone  # type: ignore[attr-defined]  # every head has one
    asks = make_asks(drafter, backbone, params)
    expected = by_depth(drafter, asks)

    def refuse(*_: object) -> None:
        raise AssertionError("the kernels know nothing of penalties")

    monkeypatch.setattr(drafter._ops, "draft", refuse)
    assert drafter.draft(asks) == expected


def test_broken_logits_are_reported_and_memories_kept(tiny_model_path: Path) -> None:
    drafter = make_drafter(tiny_model_path, "eagle3", "auto", 2)
    backbone = drafter.head.backbone  # type: ignore[attr-defined]  # every head has one
    asks = make_asks(drafter, backbone, SamplingParams())
    lengths = [ask.state.cache.length for ask in asks]
    asks[1].state.state = np.full_like(asks[1].state.state, np.nan)
    with pytest.raises(HeadError, match="NaN"):
        drafter.draft(asks)
    assert [ask.state.cache.length for ask in asks] == lengths
    assert drafter.draft([asks[0]])[0].token_ids


def test_malformed_wishes_are_refused(tiny_model_path: Path) -> None:
    drafter = make_drafter(tiny_model_path, "eagle3", "auto", 1)
    backbone = drafter.head.backbone  # type: ignore[attr-defined]  # every head has one
    asks = make_asks(drafter, backbone, SamplingParams())
    ops, blocks = drafter._ops, drafter.head.draft_blocks()
    assert ops is not None
    rule = asks[0].guesser.rule()
    assert rule is not None

    def row(num_tokens: int, position: int, size: int | None = None) -> DraftRow:
        memory = asks[0].state
        state = memory.state[:size]
        return DraftRow(state, memory.cache.layers[0], position, num_tokens, 0.0, None, rule, 5)

    with pytest.raises(ValueError, match="no room"):
        ops.draft(blocks, [row(4, 100_000)])
    with pytest.raises(ValueError, match="at least one token"):
        ops.draft(blocks, [row(0, 3)])
    with pytest.raises(ValueError, match="at least one token"):
        ops.draft(blocks, [row(2, -1)])
    with pytest.raises(ValueError, match="same cache"):
        ops.draft(blocks, [row(2, 3), row(2, 3)])
    with pytest.raises(ValueError, match="do not fit"):
        ops.draft(blocks, [row(2, 3, size=4)])
