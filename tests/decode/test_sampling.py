"""The sampler draws from the exact distribution, repeats itself, and can be guessed."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

import slow_sampling
from fakes import Phrases
from headlong.arrays import FloatArray
from headlong.config import SamplingParams
from headlong.decode.sampling import Sampler
from headlong.drafters.drafter import Guesser
from headlong.errors import CheckpointError, HeadError, RequestError

V = 10
token_lists = st.lists(st.integers(0, V - 1), max_size=12)
logit_rows = st.lists(st.floats(-8, 8, width=32), min_size=V, max_size=V)
any_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 0.7, 1.0, 2.0]),
    top_k=st.integers(0, V),
    top_p=st.sampled_from([1.0, 0.95, 0.6]),
    min_p=st.sampled_from([0.0, 0.03, 0.3]),
    repetition_penalty=st.sampled_from([1.0, 1.2]),
    presence_penalty=st.sampled_from([0.0, 0.4]),
    frequency_penalty=st.sampled_from([0.0, 0.2]),
    logit_bias=st.dictionaries(st.integers(0, V - 1), st.floats(-5, 5), max_size=2),
    seed=st.integers(0, 2**64 - 1),
)
ALL_FILTERS = SamplingParams(temperature=0.8, top_k=6, top_p=0.93, min_p=0.05)
MIXED = np.array([1.0, -2.0, 2.5, 0.3, 1.9, -0.7, 2.5, 0.0, -6.0, 1.2], dtype=np.float32)


def draw_many(params: SamplingParams, logits: FloatArray, num_draws: int) -> list[int]:
    """Return the picks at `num_draws` successive positions, all from the same logits."""
    sampler = Sampler(params, [], len(logits))
    drawn = []
    for _ in range(num_draws):
        drawn.append(sampler.pick(logits).token_id)
        sampler.push(drawn[-1])
    return drawn


def chi_square_p(drawn: Sequence[int], probs: dict[int, float]) -> float:
    counts = Counter(drawn)
    assert counts.keys() <= probs.keys()
    observed = [counts[token_id] for token_id in probs]
    expected = [prob * len(drawn) for prob in probs.values()]
    return float(stats.chisquare(observed, expected, sum_check=False).pvalue)


@given(logit_rows, any_params, token_lists, token_lists)
def test_pick_agrees_with_plain_python(
    logits: list[float], params: SamplingParams, prompt_ids: list[int], answer_ids: list[int]
) -> None:
    adjusted = slow_sampling.adjust(logits, params, prompt_ids, answer_ids)
    assume(params.temperature == 0 or not slow_sampling.is_on_the_edge(adjusted, params))
    sampler = Sampler(params, prompt_ids, V)
    for token_id in answer_ids:
        sampler.push(token_id)
    position = len(prompt_ids) + len(answer_ids)
    assert sampler.num_tokens == position
    picked = sampler.pick(np.array(logits, dtype=np.float32)).token_id
    assert picked == slow_sampling.pick(adjusted, params, position)


def test_top_p_of_zero_keeps_the_best_token_only() -> None:
    """Of two equal ones the first, as at temperature 0."""
    params = SamplingParams(temperature=1.0, top_p=0, top_k=3, min_p=0.1)
    assert set(draw_many(params, MIXED, 50)) == {2} == set(draw_many(SamplingParams(), MIXED, 1))


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.6, seed=5),
        SamplingParams(temperature=2.0, seed=2**63),
        SamplingParams(temperature=1.0, top_k=4),
        SamplingParams(temperature=1.0, top_p=0.8),
        SamplingParams(temperature=1.0, min_p=0.2),
        ALL_FILTERS,
    ],
)
def test_draws_follow_the_exact_probabilities(params: SamplingParams) -> None:
    drawn = draw_many(params, MIXED, 12_000)
    assert chi_square_p(drawn, slow_sampling.probs(MIXED.tolist(), params)) > 1e-3


def test_draws_over_seeds_follow_the_exact_probabilities() -> None:
    params = [SamplingParams(temperature=1, top_p=0.9, seed=seed) for seed in range(8000)]
    drawn = [Sampler(p, [1, 2, 3], V).pick(MIXED).token_id for p in params]
    assert chi_square_p(drawn, slow_sampling.probs(MIXED.tolist(), params[0])) > 1e-3


def test_penalised_draws_follow_the_exact_probabilities() -> None:
    drawn = []
    for seed in range(6000):
        params = SamplingParams(
            temperature=0.9,
            top_p=0.95,
            repetition_penalty=1.3,
            frequency_penalty=0.4,
            logit_bias={3: 2.0},
            seed=seed,
        )
        sampler = Sampler(params, [2, 0], V)
        sampler.push(4)
        drawn.append(sampler.pick(MIXED).token_id)
    adjusted = slow_sampling.adjust(MIXED.tolist(), params, [2, 0], [4])
    assert chi_square_p(drawn, slow_sampling.probs(adjusted, params)) > 1e-3


def independence_p(first: Sequence[int], second: Sequence[int]) -> float:
    pairs = np.zeros((4, 4))
    np.add.at(pairs, (np.array(first), np.array(second)), 1)
    return float(stats.chi2_contingency(pairs).pvalue)


@pytest.mark.parametrize("lag", [1, 2, 5])
def test_neighbouring_positions_draw_independently(lag: int) -> None:
    drawn = draw_many(SamplingParams(temperature=1), MIXED[:4], 12_000)
    assert independence_p(drawn[:-lag], drawn[lag:]) > 1e-3


@pytest.mark.parametrize("gap", [1, 2, 2**32])
def test_neighbouring_seeds_draw_independently(gap: int) -> None:
    first = draw_many(SamplingParams(temperature=1, seed=9), MIXED[:4], 10_000)
    second = draw_many(SamplingParams(temperature=1, seed=9 + gap), MIXED[:4], 10_000)
    assert independence_p(first, second) > 1e-3


def test_greedy_ties_go_to_lowest_id() -> None:
    sampler = Sampler(SamplingParams(), [], V)
    assert sampler.pick(MIXED).token_id == 2  # 6 has the same logit


def test_greedy_ignores_filters_and_seed() -> None:
    params = SamplingParams(temperature=0, top_k=1, top_p=0.1, min_p=0.9, seed=77)
    assert Sampler(params, [], V).pick(MIXED).token_id == 2


def test_pick_depends_on_values_not_on_memory() -> None:
    """Guards exactness: a row inside a batch yields what the row alone yields."""
    rng = np.random.default_rng(0)
    batch = (rng.standard_normal((5, 5001)) * 3).astype(np.float32)
    params = SamplingParams(temperature=0.8, top_p=0.97, min_p=0.001)
    for row in batch:  # rows of odd length start at every alignment
        alone = np.concatenate([row])
        picks = {Sampler(params, [0] * 7, 5001).pick(logits).token_id for logits in (row, alone)}
        assert len(picks) == 1


def test_picking_changes_neither_history_nor_logits() -> None:
    params = SamplingParams(temperature=1, frequency_penalty=1, repetition_penalty=1.5)
    sampler = Sampler(params, [1, 2], V)
    logits = MIXED.copy()
    logits.flags.writeable = False
    first = sampler.pick(logits)
    sampler.guess(logits, None, [3, 3])
    assert sampler.pick(logits) == first
    assert sampler.num_tokens == 2


def test_logprobs_ignore_what_the_request_did() -> None:
    params = SamplingParams(temperature=2, logit_bias={8: 100}, logprobs=2)
    pick = Sampler(params, [], V).pick(MIXED)
    exact = MIXED.astype(np.float64) - np.log(np.exp(MIXED.astype(np.float64)).sum())
    assert pick.token_id == 8
    assert pick.logprob is not None
    assert pick.logprob.logprob == pytest.approx(exact[8])
    assert [top.token_id for top in pick.logprob.top] == [2, 6]
    assert [top.logprob for top in pick.logprob.top] == pytest.approx([exact[2], exact[6]])


def test_logprobs_come_only_when_asked() -> None:
    assert Sampler(SamplingParams(), [], V).pick(MIXED).logprob is None
    asked = Sampler(SamplingParams(logprobs=0), [], V).pick(MIXED).logprob
    assert asked is not None
    assert asked.top == ()


@given(logit_rows, any_params, token_lists, st.lists(st.integers(0, V - 1), max_size=5))
def test_guess_from_equal_logits_is_the_pick(
    logits: list[float], params: SamplingParams, prompt_ids: list[int], drafted: list[int]
) -> None:
    row = np.array(logits, dtype=np.float32)
    sampler = Sampler(params, prompt_ids, V)
    guesser: Guesser = sampler
    guess = guesser.guess(row, None, drafted)
    in_own_order = guesser.guess(row, np.arange(V), drafted)
    for token_id in drafted:
        sampler.push(token_id)
    assert guess.token_id == sampler.pick(row).token_id
    assert guess == in_own_order
    assert 0 < guess.prob <= 1


def test_guess_speaks_backbone_ids() -> None:
    vocabulary = np.array([2, 4, 9])
    sampler = Sampler(SamplingParams(), [], V)
    guess = sampler.guess(slow_sampling.rows([0, 1, 5])[0], vocabulary, [])
    assert guess.token_id == 9
    assert guess.prob == pytest.approx(math.exp(5) / (1 + math.exp(1) + math.exp(5)))


def test_guess_prob_is_the_processed_one() -> None:
    expected = slow_sampling.probs(MIXED.tolist(), ALL_FILTERS)
    guess = Sampler(ALL_FILTERS, [0, 1], V).guess(MIXED, None, [])
    assert guess.prob == pytest.approx(expected[guess.token_id])


def probs_by_id(logits: FloatArray, params: SamplingParams) -> NDArray[np.float64]:
    probs = slow_sampling.probs(logits.tolist(), params)
    return np.array([probs[token_id] for token_id in range(len(logits))])


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_perturbed_guesses_agree_far_above_chance(temperature: float) -> None:
    """Shared noise promises agreement of at least (1 - d) / (1 + d), d the total variation."""
    rng = np.random.default_rng(4)
    params = SamplingParams(temperature=temperature, seed=11)
    backbone = (rng.standard_normal(200) * 2).astype(np.float32)
    drafter = backbone + (rng.standard_normal(200) * 0.3).astype(np.float32)
    sampler = Sampler(params, [], 200)
    num_agreed = 0
    for _ in range(3000):
        token_id = sampler.pick(backbone).token_id
        num_agreed += sampler.guess(drafter, None, []).token_id == token_id
        sampler.push(token_id)
    ours = probs_by_id(backbone, params)
    theirs = probs_by_id(drafter, params)
    distance = np.abs(ours - theirs).sum() / 2
    by_chance = float(ours @ theirs)
    rate = num_agreed / 3000
    assert rate > (1 - distance) / (1 + distance) - 0.03
    assert rate > by_chance + 0.5


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize(
    ("value", "reason"), [(math.nan, "NaN in 1 of 10"), (math.inf, "infinite logits")]
)
def test_broken_logits_are_named(temperature: float, value: float, reason: str) -> None:
    logits = MIXED.copy()
    logits[7] = value
    sampler = Sampler(SamplingParams(temperature=temperature), [1, 2, 3], V)
    with pytest.raises(CheckpointError, match=f"{reason}.* at position 3"):
        sampler.pick(logits)
    with pytest.raises(HeadError, match=reason):
        sampler.guess(logits, None, [])


def test_row_without_any_possible_token_is_named() -> None:
    with pytest.raises(CheckpointError, match="only logits of minus infinity"):
        Sampler(SamplingParams(temperature=1), [], 3).pick(np.full(3, -np.inf, dtype=np.float32))


def test_bias_outside_the_vocabulary_is_refused_at_once() -> None:
    with pytest.raises(RequestError, match="token 10"):
        Sampler(SamplingParams(logit_bias={10: 1.0}), [], V)


@given(logit_rows, any_params, st.sets(st.integers(0, V - 2), min_size=1), token_lists)
def test_grammar_leaves_only_its_own_tokens(
    logits: list[float], params: SamplingParams, allowed: set[int], prompt_ids: list[int]
) -> None:
    """Equal to a model that gives every forbidden token no chance at all."""
    grammar = Phrases([(token_id,) for token_id in sorted(allowed)], V - 1, V)
    sampler = Sampler(params, prompt_ids, V, grammar.begin())
    row = np.array(logits, dtype=np.float32)
    adjusted = slow_sampling.adjust(logits, params, prompt_ids, [])
    masked = [x if i in allowed else -math.inf for i, x in enumerate(adjusted)]
    assume(params.temperature == 0 or not slow_sampling.is_on_the_edge(masked, params))
    assert sampler.pick(row).token_id == slow_sampling.pick(masked, params, len(prompt_ids))


def test_grammar_follows_what_is_pushed() -> None:
    sampler = Sampler(SamplingParams(), [], V, Phrases([(3, 4), (5, 6)], 9, V).begin())
    said = []
    for _ in range(4):
        said.append(sampler.pick(MIXED).token_id)
        sampler.push(said[-1])
    assert said == [3, 4, 9, 9]  # 3 has a larger logit than 5; behind the end there is only the end


def test_logprobs_ignore_the_grammar() -> None:
    params = SamplingParams(logprobs=1)
    pick = Sampler(params, [], V, Phrases([(8,)], 9, V).begin()).pick(MIXED)
    free = Sampler(SamplingParams(logprobs=1, logit_bias={8: 100}), [], V).pick(MIXED)
    assert pick == free
    assert pick.logprob is not None
    assert pick.logprob.top[0].token_id == 2  # which the grammar forbids


def test_padding_behind_the_tokenizers_ids_is_forbidden() -> None:
    """Models have more rows than their tokenizers have tokens; a grammar knows the tokens only."""
    logits = np.append(MIXED, np.float32(99))
    sampler = Sampler(SamplingParams(), [], V + 1, Phrases([(3,), (4,)], 9, V).begin())
    assert sampler.pick(logits).token_id == 4
    assert sampler.guess(logits, None, []).token_id == 4


def test_grammar_wider_than_the_model_is_cut() -> None:
    sampler = Sampler(SamplingParams(), [], 5, Phrases([(3,), (4,), (7,)], 9, V).begin())
    assert sampler.pick(MIXED[:5]).token_id == 4


def test_guess_follows_the_grammar_through_a_draft() -> None:
    sampler = Sampler(SamplingParams(), [], V, Phrases([(3, 4), (3, 5), (2, 7)], 9, V).begin())
    assert sampler.guess(MIXED, None, []).token_id == 2
    assert sampler.guess(MIXED, None, [3]).token_id == 4
    forced = sampler.guess(MIXED, None, [2])
    assert (forced.token_id, forced.prob) == (7, 1.0)
    assert sampler.guess(MIXED, None, [0]).token_id == 2  # off the grammar: as good as without
    assert sampler.constraint is not None
    assert sampler.constraint.mask().sum() == 2  # nothing was pushed


def test_guess_finds_allowed_tokens_in_a_pruned_vocabulary() -> None:
    sampler = Sampler(SamplingParams(), [], V, Phrases([(3,), (4,)], 9, V).begin())
    row = slow_sampling.rows([9, 1, 5])[0]
    assert sampler.guess(row, np.array([2, 3, 4]), []).token_id == 4
    unknown = sampler.guess(row, np.array([0, 1, 2]), [])
    assert unknown.token_id == 3  # any allowed one, though the drafter has no opinion of it
    assert unknown.prob == 0.5


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_broken_logits_are_named_under_a_grammar(temperature: float) -> None:
    logits = MIXED.copy()
    logits[7] = math.nan
    sampler = Sampler(
        SamplingParams(temperature=temperature), [], V, Phrases([(3,), (4,)], 9, V).begin()
    )
    with pytest.raises(CheckpointError, match="NaN"):
        sampler.pick(logits)
