"""The round: one pass, 1 to K+1 tokens, caches that hold exactly what stands."""

from collections.abc import Callable, Sequence

import pytest

from fakes import ScriptedDrafter
from headlong.config import SamplingParams
from headlong.decode.prefill import prefill
from headlong.decode.round import run_round
from headlong.decode.sampling import Sampler
from headlong.decode.sequence import DecodingSequence
from headlong.drafters.drafter import Draft, DraftAsk, Drafter
from headlong.errors import HeadError
from headlong.models.transformer import Backbone

PROMPT = list(range(10, 22))


@pytest.fixture
def backbone(tiny_backbone: Callable[[str], Backbone]) -> Backbone:
    """A tiny Qwen3."""
    return tiny_backbone("qwen3")


def begin(backbone: Backbone, drafter: Drafter | None) -> DecodingSequence:
    """Return a sequence with its prompt processed."""
    sequence = DecodingSequence(
        list(PROMPT),
        backbone.make_cache(),
        Sampler(SamplingParams(), PROMPT, backbone.config.vocab_size),
        None if drafter is None else drafter.begin(),
    )
    prefill(sequence, backbone, drafter)
    return sequence


@pytest.fixture
def truth(backbone: Backbone) -> Sequence[int]:
    """What the backbone writes on its own."""
    sequence = begin(backbone, None)
    for _ in range(12):
        run_round([sequence], [0], backbone, None)
    return sequence.token_ids


def test_round_without_draft_emits_one_token(backbone: Backbone) -> None:
    sequence = begin(backbone, None)
    result = run_round([sequence], [4], backbone, None)[0]
    assert len(result.verdict.picks) == 1
    assert result.draft.token_ids == ()


@pytest.mark.parametrize("num_good", range(5))
def test_leading_good_tokens_stand(backbone: Backbone, truth: Sequence[int], num_good: int) -> None:
    spoiled = frozenset([len(PROMPT) + 1 + num_good])
    drafter = ScriptedDrafter(truth, backbone.config.vocab_size, spoiled)
    sequence = begin(backbone, drafter)
    result = run_round([sequence], [4], backbone, drafter)[0]
    assert result.verdict.num_accepted == min(num_good, 4)
    assert sequence.token_ids == truth[: len(sequence.token_ids)]
    assert len(sequence.token_ids) == len(PROMPT) + 1 + min(num_good, 4) + 1


def test_all_but_the_newest_token_are_cached(backbone: Backbone, truth: Sequence[int]) -> None:
    drafter = ScriptedDrafter(truth, backbone.config.vocab_size, frozenset([15, 17, 18]))
    sequence = begin(backbone, drafter)
    for _ in range(4):
        run_round([sequence], [3], backbone, drafter)
        assert sequence.cache.length == len(sequence.token_ids) - 1
        assert sequence.cache.num_pending == 0


def test_drafter_hears_of_every_committed_row_once(
    backbone: Backbone, truth: Sequence[int]
) -> None:
    drafter = ScriptedDrafter(truth, backbone.config.vocab_size, frozenset([14]))
    sequence = begin(backbone, drafter)
    run_round([sequence], [5], backbone, drafter)
    run_round([sequence], [2], backbone, drafter)
    assert sum(drafter.num_settled) == sequence.cache.length


def test_sequences_with_and_without_draft_share_a_pass(
    backbone: Backbone, truth: Sequence[int]
) -> None:
    drafter = ScriptedDrafter(truth, backbone.config.vocab_size)
    batch = [begin(backbone, drafter), begin(backbone, None), begin(backbone, drafter)]
    results = run_round(batch, [3, 3, 0], backbone, drafter)
    assert [len(result.draft.token_ids) for result in results] == [3, 0, 0]
    for sequence in batch:
        assert sequence.token_ids == truth[: len(sequence.token_ids)]


def test_broken_drafter_costs_speed_not_the_answer(
    backbone: Backbone, truth: Sequence[int]
) -> None:
    class Broken(ScriptedDrafter):
        def draft(self, asks: Sequence[DraftAsk]) -> list[Draft]:
            raise HeadError("The drafter produced NaN.", "Use another head.")

    drafter = Broken(truth, backbone.config.vocab_size)
    sequence = begin(backbone, drafter)
    for _ in range(3):
        run_round([sequence], [4], backbone, drafter)
    assert sequence.token_ids == truth[: len(PROMPT) + 4]
    assert sequence.off_reason == "The drafter produced NaN. Use another head."
