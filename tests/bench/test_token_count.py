"""One counter for all sides: nobody is measured in another currency."""

from bench_parts import make_answer, make_prompt, make_question, make_run
from headlong.bench.measure import Run
from headlong.bench.token_count import BY_ENGINE, BY_PIECES, BY_TOKENIZER, BY_USAGE, settle_tokens

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
    assert with_usage.pace.num_pieces == 70
    settled, words = settle_tokens(runs)
    assert (counts(settled), words) == ([70, 8], BY_PIECES)


def test_tokenizer_counts_texts_on_all_sides() -> None:
    runs = [remote(7, says_so=True), remote(8, says_so=False)]
    settled, words = settle_tokens(runs, lambda text: len(text.split()))
    assert (counts(settled), words) == ([3, 3], BY_TOKENIZER)


def test_failed_runs_stay_as_they_are() -> None:
    failed = make_run("A", QUESTION, None, "broke")
    assert settle_tokens([failed, remote(8, says_so=False)])[0][0] is failed
