"""Accept keeps the draft's agreeing head, adds one token, and never changes the text."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import slow_sampling
from headlong.arrays import FloatArray
from headlong.config import SamplingParams
from headlong.decode.accept import accept
from headlong.decode.outcome import Verdict
from headlong.decode.sampling import Pick, Sampler

V = 8


def one_hot_rows(*token_ids: int) -> FloatArray:
    """Return logits whose greedy picks are `token_ids`."""
    return np.eye(V, dtype=np.float32)[list(token_ids)]


def picked(verdict: Verdict) -> list[int]:
    return [pick.token_id for pick in verdict.picks]


def greedy() -> Sampler:
    return Sampler(SamplingParams(), [0], V)


def test_draft_that_never_agrees_yields_recovered_token() -> None:
    verdict = accept([1, 2, 3], one_hot_rows(5, 2, 3, 4), greedy())
    assert picked(verdict) == [5]
    assert verdict.num_accepted == 0


def test_draft_that_always_agrees_yields_bonus_token() -> None:
    verdict = accept([1, 2, 3], one_hot_rows(1, 2, 3, 4), greedy())
    assert picked(verdict) == [1, 2, 3, 4]
    assert verdict.num_accepted == 3


def test_first_refusal_ends_the_run() -> None:
    """Token 3 agrees again after the refusal, but its row was computed after a wrong token."""
    verdict = accept([1, 6, 3], one_hot_rows(1, 2, 3, 4), greedy())
    assert picked(verdict) == [1, 2]
    assert verdict.num_accepted == 1


def test_empty_draft_is_a_plain_step() -> None:
    verdict = accept([], one_hot_rows(4), greedy())
    assert picked(verdict) == [4]
    assert verdict.num_accepted == 0


def test_history_grows_by_the_picks_alone() -> None:
    sampler = greedy()
    accept([1, 6, 3], one_hot_rows(1, 2, 3, 4), sampler)
    assert sampler.num_tokens == 3


def test_penalties_see_accepted_tokens() -> None:
    """Every row prefers token 1, until it has been accepted once."""
    sampler = Sampler(SamplingParams(presence_penalty=5), [0], V)
    logits = slow_sampling.rows(*[[0, 3, 1, 0.5, 0, 0, 0, 0]] * 3)
    verdict = accept([1, 1], logits, sampler)
    assert picked(verdict) == [1, 2]
    assert verdict.num_accepted == 1


def test_verdict_ends_with_exactly_one_next_token() -> None:
    with pytest.raises(AssertionError, match="next token"):
        Verdict((Pick(1, None),), num_accepted=1)


def logits_after(history: tuple[int, ...]) -> FloatArray:
    """Stand in for a backbone: logits that depend on the last three tokens."""
    rng = np.random.default_rng([7, *history[-3:]])
    return (rng.standard_normal(V) * 2).astype(np.float32)


@settings(deadline=None)
@given(
    st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 0.3, 0.7, 1.0]),
        top_p=st.sampled_from([1.0, 0.9]),
        repetition_penalty=st.sampled_from([1.0, 1.3]),
        frequency_penalty=st.sampled_from([0.0, 0.3]),
        seed=st.integers(0, 1000),
        logprobs=st.sampled_from([None, 2]),
    ),
    st.lists(st.lists(st.integers(0, V - 1), max_size=6), min_size=8, max_size=8),
    st.floats(0, 1),
)
def test_any_draft_gives_the_text_of_the_plain_loop(
    params: SamplingParams, wild_drafts: list[list[int]], share_right: float
) -> None:
    prompt = (3, 1)
    plain = Sampler(params, prompt, V)
    expected: list[Pick] = []
    while len(expected) < 64:
        tokens = prompt + tuple(pick.token_id for pick in expected)
        expected.append(plain.pick(logits_after(tokens)))
        plain.push(expected[-1].token_id)

    sampler = Sampler(params, prompt, V)
    emitted: list[Pick] = []
    for draft in wild_drafts:
        # Part of each draft is right, so that runs of all lengths happen.
        num_right = round(share_right * len(draft))
        right = [pick.token_id for pick in expected[len(emitted) :][:num_right]]
        draft_ids = right + draft[num_right:]
        tokens = prompt + tuple(pick.token_id for pick in emitted)
        rows = [logits_after(tokens + tuple(draft_ids[:n])) for n in range(len(draft_ids) + 1)]
        verdict = accept(draft_ids, np.array(rows), sampler)
        assert verdict.num_accepted >= num_right
        emitted.extend(verdict.picks)
    assert emitted == expected[: len(emitted)]
