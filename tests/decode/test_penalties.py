"""Penalties and bias, against the slow truth and by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import slow_sampling
from headlong.config import SamplingParams
from headlong.decode.penalties import Penalties
from headlong.errors import RequestError

V = 12
token_lists = st.lists(st.integers(0, V - 1), max_size=30)
logit_rows = st.lists(st.floats(-20, 20, width=32), min_size=V, max_size=V)
penalty_params = st.builds(
    SamplingParams,
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    presence_penalty=st.sampled_from([0.0, 0.5, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.2, -0.3]),
    logit_bias=st.dictionaries(st.integers(0, V - 1), st.floats(-100, 100), max_size=4),
)


@given(logit_rows, penalty_params, token_lists, token_lists, st.integers(0, 5))
def test_adjusted_logits_agree_with_plain_loop(
    logits: list[float],
    params: SamplingParams,
    prompt_ids: list[int],
    answer_ids: list[int],
    num_drafted: int,
) -> None:
    num_pushed = max(0, len(answer_ids) - num_drafted)
    penalties = Penalties(params, prompt_ids, V)
    for token_id in answer_ids[:num_pushed]:
        penalties.push(token_id)
    adjusted = penalties.apply(np.array(logits, dtype=np.float32), answer_ids[num_pushed:])
    expected = slow_sampling.adjust(logits, params, prompt_ids, answer_ids)
    assert adjusted.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_repetition_weakens_positive_and_negative_logits() -> None:
    penalties = Penalties(SamplingParams(repetition_penalty=2), [0, 1, 1], 3)
    assert penalties.apply(slow_sampling.rows([4, -4, 4])[0]).tolist() == [2, -8, 4]


def test_presence_and_frequency_spare_the_prompt() -> None:
    params = SamplingParams(presence_penalty=1, frequency_penalty=0.5)
    penalties = Penalties(params, [0, 1], 3)
    for token_id in (1, 2, 2):
        penalties.push(token_id)
    assert penalties.apply(slow_sampling.rows([0, 0, 0])[0]).tolist() == [0, -1.5, -2]


def test_drafted_tokens_count_but_do_not_stay() -> None:
    penalties = Penalties(SamplingParams(frequency_penalty=1), [], 4)
    penalties.push(1)
    row = slow_sampling.rows([0, 0, 0, 0])[0]
    assert penalties.apply(row, [1, 3, 3]).tolist() == [0, -2, 0, -2]
    assert penalties.apply(row).tolist() == [0, -1, 0, 0]


def test_draft_vocabulary_finds_its_columns() -> None:
    params = SamplingParams(repetition_penalty=2, logit_bias={4: 10, 0: 99})
    penalties = Penalties(params, [2, 5], 6)
    adjusted = penalties.apply(slow_sampling.rows([1, 1, 1])[0], [3], np.array([3, 4, 5]))
    assert adjusted.tolist() == [0.5, 11, 0.5]  # tokens 0 and 2 have no column
    other = penalties.apply(slow_sampling.rows([1, 1])[0], [], np.array([2, 1]))
    assert other.tolist() == [0.5, 1]


def test_given_logits_stay_untouched() -> None:
    row = slow_sampling.rows([1, 2, 3])[0]
    Penalties(SamplingParams(repetition_penalty=3, logit_bias={1: 5}), [0, 1, 2], 3).apply(row)
    assert row.tolist() == [1, 2, 3]


def test_nothing_asked_copies_nothing() -> None:
    row = slow_sampling.rows([1, 2, 3])[0]
    assert Penalties(SamplingParams(), [0, 1], 3).apply(row) is row


def test_long_histories_are_remembered_whole() -> None:
    penalties = Penalties(SamplingParams(frequency_penalty=1), [], 1000)
    for token_id in [*range(500), *range(500)]:
        penalties.push(token_id)
    adjusted = penalties.apply(np.zeros(1000, dtype=np.float32))
    assert adjusted.tolist() == [-2.0] * 500 + [0.0] * 500


def test_bias_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(RequestError, match=r"token 12, but the model has 12 tokens.*0 to 11"):
        Penalties(SamplingParams(logit_bias={3: 1, 12: 1}), [], 12)


def test_end_is_ruled_out_before_min_tokens() -> None:
    penalties = Penalties(SamplingParams(min_tokens=2), [0], 4, frozenset({1, 3}))
    row = slow_sampling.rows([1, 2, 3, 4])[0]
    held = [1, -np.inf, 3, -np.inf]
    assert penalties.apply(row).tolist() == held
    assert penalties.apply(row, [0]).tolist() == held
    assert penalties.apply(row, [0, 0]).tolist() == [1, 2, 3, 4]
    assert penalties.apply(row[2:], (), np.array([0, 3])).tolist() == [3, -np.inf]
    for _ in range(2):
        assert not penalties.are_neutral
        penalties.push(0)
    assert penalties.are_neutral
