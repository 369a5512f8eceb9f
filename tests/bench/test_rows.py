"""Rows: what goes into a results file comes back the same, without any text."""

import json

import pytest

from bench_parts import make_answer, make_prompt, make_question, make_run
from headlong.bench.measure import Acceptance
from headlong.bench.rows import COLUMNS, make_row, read_row
from headlong.errors import RequestError

ANSWER = make_answer(
    5, num_prompt_tokens=9, acceptance=Acceptance(3, 6, 2, (2, 0)), text="a secret", num_retries=2
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
