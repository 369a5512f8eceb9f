"""Rows keep every number and no text; tokens are counted one way; differences are found."""

import json

import pytest

from bench_parts import make_answer, make_prompt, make_question, make_run
from headlong.bench.measure import Run, TimedAnswer
from headlong.bench.rows import (
    BY_ENGINE,
    BY_PIECES,
    BY_TOKENIZER,
    BY_USAGE,
    COLUMNS,
    first_divergence,
    make_row,
    read_row,
    settle_tokens,
)
from headlong.decode.stats import DecodeStats
from headlong.errors import RequestError

ANSWER = make_answer(
    5,
    num_prompt_tokens=9,
    acceptance=DecodeStats(3, 6, 2, accepted_at_depth=[2, 0]),
    text="a secret",
    num_retries=2,
)


def test_rows_survive_json() -> None:
    row = make_row(make_run("auto", make_question(make_prompt(3), 0.7, 2), ANSWER))
    back = read_row(json.loads(json.dumps(row.to_dict())), "old.json")
    assert back == row
    assert back.acceptance == ANSWER.acceptance
    assert back.key == (make_prompt(3).hash, 0.7, 2)


def test_rows_hold_no_text_of_prompt_or_answer() -> None:
    row = make_row(make_run("auto", make_question(make_prompt(3)), ANSWER))
    written = json.dumps(row.to_dict())
    assert "secret" not in written
    assert "code prompt 3" not in written


def test_failed_runs_keep_their_reason() -> None:
    row = make_row(make_run("B", make_question(make_prompt(1)), None, "broke off"))
    assert (row.error, row.num_tokens, row.acceptance) == ("broke off", 0, None)


def test_cells_are_empty_where_nothing_is_known() -> None:
    row = make_row(make_run("auto", make_question(make_prompt(3)), ANSWER))
    cells = row.to_cells()
    assert tuple(cells) == COLUMNS
    assert cells["accepted_at_depth"] == "2 0"
    assert cells["prefill_s"] == ""
    assert cells["num_retries"] == "2"


def test_texts_decide_where_tokens_are_unknown() -> None:
    question = make_question(make_prompt(1))
    known = make_row(make_run("off", question, make_answer(3, text="abc")))
    same = make_row(make_run("B", question, make_answer(4, text="abc", token_ids=None)))
    other = make_row(make_run("B", question, make_answer(4, text="abd", token_ids=None)))
    assert known.says_the_same(same)
    assert not known.says_the_same(other)


@pytest.mark.parametrize("record", [{}, "row", {"side": "A"}, None])
def test_rows_that_are_none_are_refused(record: object) -> None:
    with pytest.raises(RequestError, match=r"old\.json holds a run that cannot be read"):
        read_row(record, "old.json")


def test_negative_numbers_are_refused() -> None:
    row = make_row(make_run("auto", make_question(make_prompt(3)), ANSWER))
    with pytest.raises(RequestError, match="negative"):
        read_row(row.to_dict() | {"total_s": -1.0}, "old.json")


QUESTION = make_question(make_prompt(1))


def remote(num_tokens: int, *, says_so: bool) -> Run:
    answer = make_answer(num_tokens, token_ids=None, text="a b c", is_counted_by_server=says_so)
    return make_run("A", QUESTION, answer)


def counts(runs: list[Run]) -> list[int]:
    return [run.answer.num_tokens for run in runs if run.answer is not None]


def test_engine_counts_its_own_tokens() -> None:
    runs, words = settle_tokens([make_run("off", QUESTION, make_answer(7))])
    assert (counts(runs), words) == ([7], BY_ENGINE)


def test_usage_is_taken_where_every_answer_has_it() -> None:
    runs, words = settle_tokens([remote(7, says_so=True), remote(8, says_so=True)])
    assert (counts(runs), words) == ([7, 8], BY_USAGE)


def test_one_answer_without_usage_makes_all_count_by_pieces() -> None:
    with_usage = make_answer(70, token_ids=None, text="x", is_counted_by_server=True)
    runs = [make_run("A", QUESTION, with_usage), remote(8, says_so=False)]
    assert with_usage.num_pieces == 70
    settled, words = settle_tokens(runs)
    assert (counts(settled), words) == ([70, 8], BY_PIECES)


def test_tokenizer_counts_texts_on_all_sides() -> None:
    runs = [remote(7, says_so=True), remote(8, says_so=False)]
    settled, words = settle_tokens(runs, lambda text: len(text.split()))
    assert (counts(settled), words) == ([3, 3], BY_TOKENIZER)


def test_failed_runs_stay_as_they_are() -> None:
    failed = make_run("A", QUESTION, None, "broke")
    assert settle_tokens([failed, remote(8, says_so=False)])[0][0] is failed


def runs_of(plain: TimedAnswer, other: TimedAnswer) -> list[Run]:
    question = make_question(make_prompt(2), 0.7)
    return [make_run("auto", question, other), make_run("off", question, plain)]


def test_same_tokens_are_no_divergence() -> None:
    assert first_divergence(runs_of(make_answer(), make_answer()), "off") is None


def test_first_different_token_is_named_with_both_texts() -> None:
    plain = make_answer(3, token_ids=(7, 8, 9), text="the cat sat")
    other = make_answer(3, token_ids=(7, 8, 5), text="the cat ran")
    found = first_divergence(runs_of(plain, other), "off")
    assert found is not None
    assert (found.position, found.unit, found.candidate) == (3, "token", "auto")
    assert (found.baseline_text, found.candidate_text) == ("sat", "ran")
    assert "code:2 at temperature 0.7: auto parts from the baseline at token 3" in found.words


def test_answer_that_goes_on_parts_where_the_other_ends() -> None:
    plain = make_answer(2, token_ids=(7, 8), text="ab")
    other = make_answer(3, token_ids=(7, 8, 9), text="abc")
    found = first_divergence(runs_of(plain, other), "off")
    assert found is not None
    assert (found.position, found.baseline_text, found.candidate_text) == (3, "", "c")


def test_characters_are_counted_where_tokens_are_unknown() -> None:
    plain = make_answer(1, token_ids=None, text="abcd")
    other = make_answer(1, token_ids=None, text="abXd")
    found = first_divergence(runs_of(plain, other), "off")
    assert found is not None
    assert (found.position, found.unit) == (3, "character")


def test_failed_runs_are_not_compared() -> None:
    question = make_question(make_prompt(2))
    runs = [make_run("off", question, make_answer()), make_run("auto", question, None, "broke")]
    assert first_divergence(runs, "off") is None
