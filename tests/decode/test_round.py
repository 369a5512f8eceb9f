"""The round: one pass, 1 to K+1 tokens, caches that hold exactly what stands."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from fakes import Phrases, PhraseState, ScriptedDrafter, make_sequence, play_round
from headlong.config import SamplingParams
from headlong.decode.drafting import MAX_FORCED
from headlong.decode.prefill import PromptChunk, prefill
from headlong.decode.sampling import Sampler
from headlong.decode.sequence import DecodingSequence
from headlong.drafters.draft_plan import NO_PLAN, DraftPlan, Threshold
from headlong.drafters.drafter import NGRAM, Draft, Drafter, DraftRequest
from headlong.errors import HeadError, RequestError
from headlong.models.transformer import Backbone

PROMPT = list(range(10, 22))


@pytest.fixture
def backbone(tiny_backbone: Callable[[str], Backbone]) -> Backbone:
    """A tiny Qwen3."""
    return tiny_backbone("qwen3")


def begin(backbone: Backbone, drafter: Drafter | None) -> DecodingSequence:
    """Return a sequence with its prompt processed."""
    state = None if drafter is None else drafter.begin()
    cache, vocab_size = backbone.make_cache(), backbone.config.vocab_size
    sequence = make_sequence(PROMPT, cache, state, vocab_size)
    prefill([PromptChunk(sequence, len(PROMPT))], backbone, drafter)
    return sequence


@pytest.fixture
def truth(backbone: Backbone) -> Sequence[int]:
    """What the backbone writes on its own."""
    sequence = begin(backbone, None)
    for _ in range(12):
        play_round([sequence], [NO_PLAN], backbone, None)
    return sequence.token_ids


def test_round_without_draft_emits_one_token(backbone: Backbone) -> None:
    sequence = begin(backbone, None)
    result = play_round([sequence], [DraftPlan(4)], backbone, None)[0]
    assert result.verdict is not None
    assert len(result.verdict.picks) == 1
    assert result.draft.token_ids == ()


@pytest.mark.parametrize("num_good", range(5))
def test_leading_good_tokens_stand(backbone: Backbone, truth: Sequence[int], num_good: int) -> None:
    spoiled = frozenset([len(PROMPT) + 1 + num_good])
    drafter = ScriptedDrafter(truth, backbone.config.vocab_size, spoiled)
    sequence = begin(backbone, drafter)
    result = play_round([sequence], [DraftPlan(4)], backbone, drafter)[0]
    assert result.verdict is not None
    assert result.verdict.num_accepted == min(num_good, 4)
    assert sequence.token_ids == truth[: len(sequence.token_ids)]
    assert len(sequence.token_ids) == len(PROMPT) + 1 + min(num_good, 4) + 1


def test_all_but_the_newest_token_are_cached(backbone: Backbone, truth: Sequence[int]) -> None:
    drafter = ScriptedDrafter(truth, backbone.config.vocab_size, frozenset([15, 17, 18]))
    sequence = begin(backbone, drafter)
    for _ in range(4):
        play_round([sequence], [DraftPlan(3)], backbone, drafter)
        assert sequence.cache.length == len(sequence.token_ids) - 1
        assert sequence.cache.num_pending == 0


def test_drafter_hears_of_every_committed_row_once(
    backbone: Backbone, truth: Sequence[int]
) -> None:
    drafter = ScriptedDrafter(truth, backbone.config.vocab_size, frozenset([14]))
    sequence = begin(backbone, drafter)
    play_round([sequence], [DraftPlan(5)], backbone, drafter)
    play_round([sequence], [DraftPlan(2)], backbone, drafter)
    assert sum(drafter.num_settled) == sequence.cache.length


@dataclass
class Copying(ScriptedDrafter):
    """Drafts the truth when asked, and copies it."""

    def look_up(self, state: str, history: list[int], threshold: Threshold) -> Draft:
        """Copy the next token."""
        return Draft(tuple(self.truth[len(history) : len(history) + 1]), (0.9,), (NGRAM,))

    def draft(self, asks: Sequence[DraftRequest]) -> list[Draft]:
        """Count as not asked."""
        assert not asks, "a model was to run for a sequence that only copies"
        return []


def test_resting_sequence_copies_without_waking_the_drafter(
    backbone: Backbone, truth: Sequence[int]
) -> None:
    drafter = Copying(truth, backbone.config.vocab_size)
    sequence = begin(backbone, drafter)
    lookup = DraftPlan(1, is_idle=True, only_lookup=True)
    drafter.num_settled.clear()
    results = [play_round([sequence], [lookup], backbone, drafter)[0] for _ in range(3)]
    assert [result.draft.sources for result in results] == [(NGRAM,)] * 3
    assert sequence.token_ids == truth[: len(PROMPT) + 1 + 6]
    assert sequence.backlog.num_rows == 6
    assert drafter.num_settled == []


def test_copies_are_cut_to_what_a_grammar_allows(backbone: Backbone, truth: Sequence[int]) -> None:
    drafter = Copying(truth, backbone.config.vocab_size)
    next_id = truth[len(PROMPT) + 1]
    for allowed, num_copied in ((next_id, 1), (next_id + 1, 0)):
        sequence = begin(backbone, drafter)
        phrases = [(allowed, 1), (next_id + 2, 1)]
        sequence.sampler.constraint = Phrases(phrases, EOS, backbone.config.vocab_size).begin()
        result = play_round([sequence], [DraftPlan(1, only_lookup=True)], backbone, drafter)[0]
        assert len(result.draft.token_ids) == num_copied


def test_sequences_with_and_without_draft_share_a_pass(
    backbone: Backbone, truth: Sequence[int]
) -> None:
    drafter = ScriptedDrafter(truth, backbone.config.vocab_size)
    batch = [begin(backbone, drafter), begin(backbone, None), begin(backbone, drafter)]
    results = play_round(batch, [DraftPlan(3), DraftPlan(3), NO_PLAN], backbone, drafter)
    assert [len(result.draft.token_ids) for result in results] == [3, 0, 0]
    for sequence in batch:
        assert sequence.token_ids == truth[: len(sequence.token_ids)]


def test_broken_drafter_costs_speed_not_the_answer(
    backbone: Backbone, truth: Sequence[int]
) -> None:
    class Broken(ScriptedDrafter):
        def draft(self, asks: Sequence[DraftRequest]) -> list[Draft]:
            raise HeadError("The drafter produced NaN.", "Use another head.")

    drafter = Broken(truth, backbone.config.vocab_size)
    sequence = begin(backbone, drafter)
    for _ in range(3):
        play_round([sequence], [DraftPlan(4)], backbone, drafter)
    assert sequence.token_ids == truth[: len(PROMPT) + 4]
    assert sequence.off_reason == "The drafter produced NaN. Use another head."


EOS = 0
LONG = tuple(30 + i % 50 for i in range(40))


def begin_held(
    backbone: Backbone, drafter: Drafter | None, *phrases: tuple[int, ...]
) -> DecodingSequence:
    """Return a sequence that may say nothing but these phrases, its prompt processed."""
    sequence = begin(backbone, drafter)
    constraint = Phrases(phrases, EOS, backbone.config.vocab_size).begin()
    params, token_ids = SamplingParams(), sequence.token_ids
    sequence.sampler = Sampler(params, token_ids, backbone.config.vocab_size, constraint)
    return sequence


def test_forced_spans_are_drafted_beyond_k(backbone: Backbone) -> None:
    drafter = ScriptedDrafter([], backbone.config.vocab_size)
    sequence = begin_held(backbone, drafter, LONG)
    result = play_round([sequence], [DraftPlan(2)], backbone, drafter)[0]
    assert result.draft.token_ids == LONG[:MAX_FORCED]
    assert set(result.draft.sources) == {"grammar"}
    assert result.verdict is not None
    assert result.verdict.num_accepted == MAX_FORCED
    assert tuple(sequence.token_ids[-MAX_FORCED - 1 :]) == LONG[: MAX_FORCED + 1]
    assert sequence.cache.length == len(sequence.token_ids) - 1


def test_sequence_that_is_off_drafts_nothing_at_all(backbone: Backbone) -> None:
    sequence = begin_held(backbone, None, LONG)
    assert play_round([sequence], [NO_PLAN], backbone, None)[0].draft.token_ids == ()


def test_forced_spans_come_even_when_drafting_does_not_pay(backbone: Backbone) -> None:
    drafter = ScriptedDrafter([], backbone.config.vocab_size)
    sequence = begin_held(backbone, drafter, LONG)
    assert (
        play_round([sequence], [NO_PLAN], backbone, drafter)[0].draft.token_ids == LONG[:MAX_FORCED]
    )


def test_forced_spans_stay_inside_the_context(backbone: Backbone) -> None:
    drafter = ScriptedDrafter([], backbone.config.vocab_size)
    sequence = begin_held(backbone, drafter, LONG)
    room = backbone.config.context_length - len(sequence.token_ids)
    filler = [5] * (room - 4)
    backbone.forward([np.array([sequence.token_ids[-1], *filler[:-1]])], [sequence.cache])
    sequence.cache.commit(len(filler))
    sequence.token_ids += filler
    assert len(play_round([sequence], [DraftPlan(2)], backbone, drafter)[0].draft.token_ids) == 3


def test_forced_spans_share_the_rows_of_a_round(backbone: Backbone) -> None:
    """Guards streams beside many of JSON: they would wait for hundreds of rows."""
    drafter = ScriptedDrafter([], backbone.config.vocab_size)
    phrases = [LONG, LONG[:3], LONG, LONG]
    batch = [begin_held(backbone, drafter, phrase) for phrase in phrases]
    results = play_round(
        [*batch, begin(backbone, drafter)],
        [DraftPlan(k) for k in (2, 0, 0, 0, 3)],
        backbone,
        drafter,
        40,
    )
    lengths = [len(result.draft.token_ids) for result in results]
    assert lengths == [11, 3, 9, 9, 0], "two are the first one's own, the rest is shared evenly"
    assert sum(lengths) + len(lengths) + 3 == 40
    crowded = play_round(batch, [NO_PLAN] * 4, backbone, drafter, max_rows=3)
    assert [len(result.draft.token_ids) for result in crowded] == [0, 0, 0, 0]


def test_drafter_goes_on_behind_a_forced_span(backbone: Backbone) -> None:
    phrases = [(40, 41, 42), (40, 41, 43), (40, 41, 42, 44)]
    drafter = ScriptedDrafter([*PROMPT, 99, 40, 41, 42, 44, 45], backbone.config.vocab_size)
    sequence = begin_held(backbone, drafter, *phrases)
    draft = play_round([sequence], [DraftPlan(5)], backbone, drafter)[0].draft
    assert draft.token_ids == (40, 41, 42, 44)  # 45 is in no phrase
    assert draft.sources == ("grammar", "grammar", "scripted", "scripted")


def test_drafter_that_contradicts_the_grammar_is_not_heard(backbone: Backbone) -> None:
    drafter = ScriptedDrafter([*PROMPT, 99, 70, 71, 72, 73], backbone.config.vocab_size)
    sequence = begin_held(backbone, drafter, (40, 41, 42), (40, 41, 43))
    assert play_round([sequence], [DraftPlan(4)], backbone, drafter)[0].draft.token_ids == (40, 41)
    free = begin_held(backbone, drafter, (40, 41), (50, 51))
    assert play_round([free], [DraftPlan(4)], backbone, drafter)[0].draft.token_ids == ()


def test_failure_of_one_leaves_the_others_alone(backbone: Backbone, truth: Sequence[int]) -> None:
    class Lost(PhraseState):
        def push(self, token_id: int) -> None:
            raise RequestError("The grammar cannot be followed.", "Use a simpler one.")

    drafter = ScriptedDrafter(truth, backbone.config.vocab_size)
    batch = [begin(backbone, drafter), begin_held(backbone, drafter, LONG), begin(backbone, None)]
    batch[1].sampler.constraint = Lost(Phrases([LONG], EOS, backbone.config.vocab_size))
    results = play_round(batch, [DraftPlan(3), DraftPlan(3), NO_PLAN], backbone, drafter)
    assert results[1].verdict is None
    assert isinstance(results[1].error, RequestError)
    assert batch[1].cache.num_pending == 0
    for sequence in (batch[0], batch[2]):
        assert sequence.token_ids == truth[: len(sequence.token_ids)]
        assert sequence.cache.length == len(sequence.token_ids) - 1
