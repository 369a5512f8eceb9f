"""Where two sides part: the first token, or the first character where tokens are not known."""

from bench_parts import make_answer, make_prompt, make_question, make_run
from headlong.bench.identity import find_divergence
from headlong.bench.measure import Answer, Run


def runs_of(plain: Answer, other: Answer) -> list[Run]:
    question = make_question(make_prompt(2), 0.7)
    return [make_run("auto", question, other), make_run("off", question, plain)]


def test_same_tokens_are_no_divergence() -> None:
    assert find_divergence(runs_of(make_answer(), make_answer()), "off") is None


def test_first_different_token_is_named_with_both_texts() -> None:
    plain = make_answer(3, token_ids=(7, 8, 9), text="the cat sat")
    other = make_answer(3, token_ids=(7, 8, 5), text="the cat ran")
    found = find_divergence(runs_of(plain, other), "off")
    assert found is not None
    assert (found.position, found.unit, found.candidate) == (3, "token", "auto")
    assert (found.baseline_text, found.candidate_text) == ("sat", "ran")
    assert "code:2 at temperature 0.7: auto parts from the baseline at token 3" in found.words


def test_answer_that_goes_on_parts_where_the_other_ends() -> None:
    plain = make_answer(2, token_ids=(7, 8), text="ab")
    other = make_answer(3, token_ids=(7, 8, 9), text="abc")
    found = find_divergence(runs_of(plain, other), "off")
    assert found is not None
    assert (found.position, found.baseline_text, found.candidate_text) == (3, "", "c")


def test_characters_are_counted_where_tokens_are_unknown() -> None:
    plain = make_answer(1, token_ids=None, text="abcd")
    other = make_answer(1, token_ids=None, text="abXd")
    found = find_divergence(runs_of(plain, other), "off")
    assert found is not None
    assert (found.position, found.unit) == (3, "character")


def test_failed_runs_are_not_compared() -> None:
    question = make_question(make_prompt(2))
    runs = [make_run("off", question, make_answer()), make_run("auto", question, None, "broke")]
    assert find_divergence(runs, "off") is None
