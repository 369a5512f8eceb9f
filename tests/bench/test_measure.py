"""Every question is put to every side, and nothing that was measured is lost."""

import time
from collections import Counter

import pytest

from bench_parts import FakeClock, ScriptedSide, make_answer, make_prompt, refuse
from headlong.bench.measure import (
    STOPPED_BY_USER,
    Question,
    QuestionPlan,
    Run,
    TimedAnswer,
    make_questions,
    run_ab,
)

PROMPTS = [make_prompt(number, task) for task in ("chat", "code") for number in range(6)]


def answering(question: Question) -> TimedAnswer:
    return make_answer()


def test_sides_answer_each_question_right_after_each_other() -> None:
    sides = [ScriptedSide("off", answering), ScriptedSide("auto", answering)]
    runs = run_ab(sides, QuestionPlan(PROMPTS)).runs
    for first, second in zip(runs[::2], runs[1::2], strict=True):
        assert first.question == second.question
        assert {first.side, second.side} == {"off", "auto"}
        assert (first.place, second.place) == (0, 1)


def test_each_side_is_first_about_as_often() -> None:
    sides = [ScriptedSide("off", answering), ScriptedSide("auto", answering)]
    runs = run_ab(sides, QuestionPlan(PROMPTS, num_runs=10)).runs
    firsts = Counter(run.side for run in runs if run.place == 0)
    assert min(firsts.values()) > 40  # of 120


def test_order_is_the_same_for_the_same_seed() -> None:
    def order(seed: int) -> list[tuple[str, str]]:
        sides = [ScriptedSide("off", answering), ScriptedSide("auto", answering)]
        runs = run_ab(sides, QuestionPlan(PROMPTS, seed=seed)).runs
        return [(run.side, run.question.prompt.name) for run in runs]

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_every_side_is_warmed_up_before_anything_counts() -> None:
    sides = [ScriptedSide("off", answering), ScriptedSide("auto", answering)]
    run_ab(sides, QuestionPlan(PROMPTS))
    assert [len(side.warmed_up) for side in sides] == [1, 1]
    assert [len(side.asked) for side in sides] == [12, 12]


def test_any_beginning_has_as_much_of_every_task() -> None:
    """A time budget that ends early must not have measured one task only."""
    tasks = [question.prompt.task for question in make_questions(QuestionPlan(PROMPTS))]
    for length in range(2, 13, 2):
        assert Counter(tasks[:length]) == {"chat": length // 2, "code": length // 2}


def test_command_line_comes_before_the_prompt_and_that_before_defaults() -> None:
    own = make_prompt(1, max_tokens=5, temperature=0.9)
    bare = make_prompt(2)

    def asked(plan: QuestionPlan) -> set[tuple[int, float]]:
        return {(q.max_tokens, q.temperature) for q in make_questions(plan)}

    assert asked(QuestionPlan([own])) == {(5, 0.9)}
    assert asked(QuestionPlan([bare])) == {(128, 0.0)}
    assert asked(QuestionPlan([own], (0.0, 0.7), 20)) == {(20, 0.0), (20, 0.7)}


def test_runs_have_seeds_of_their_own() -> None:
    questions = make_questions(QuestionPlan([make_prompt()], num_runs=3, seed=5))
    assert [(q.run, q.seed) for q in questions] == [(0, 5), (1, 6), (2, 7)]


def test_failing_prompt_is_noted_and_the_rest_goes_on() -> None:
    def fail_once(question: Question) -> TimedAnswer:
        return refuse(question) if question.prompt is PROMPTS[3] else make_answer()

    heard: list[Run] = []
    sides = [ScriptedSide("off", answering), ScriptedSide("auto", fail_once)]
    measured = run_ab(sides, QuestionPlan(PROMPTS), heard.append)
    failed = [run for run in measured.runs if run.error is not None]
    assert [run.error for run in failed] == ["No answer to chat:3. Try again."]
    assert len(measured.runs) == 24
    assert measured.stopped is None
    assert heard == list(measured.runs)


def test_side_that_has_gone_ends_the_measurement() -> None:
    left = iter(range(4))

    def die(question: Question) -> TimedAnswer:
        return make_answer() if next(left, None) is not None else refuse(question)

    sides = [ScriptedSide("A", answering), ScriptedSide("B", die)]
    measured = run_ab(sides, QuestionPlan(PROMPTS))
    assert measured.stopped == "side B did not answer 3 questions in a row"
    assert len(measured.runs) == 14
    assert measured.num_planned == 12


def test_time_budget_begins_no_new_question(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    monkeypatch.setattr(time, "monotonic", clock)

    def take_a_second(question: Question) -> TimedAnswer:
        clock.advance(1.0)
        return make_answer()

    sides = [ScriptedSide("off", take_a_second), ScriptedSide("auto", take_a_second)]
    measured = run_ab(sides, QuestionPlan(PROMPTS, time_budget_s=5.0))
    assert len(measured.runs) == 6  # the third question begins at 4 s, and both sides answer it
    assert measured.stopped == "the time budget of 5 s was used up"


def test_ctrl_c_keeps_what_was_measured() -> None:
    left = iter(range(5))

    def interrupt(question: Question) -> TimedAnswer:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return make_answer()

    sides = [ScriptedSide("off", interrupt), ScriptedSide("auto", interrupt)]
    measured = run_ab(sides, QuestionPlan(PROMPTS))
    assert len(measured.runs) == 5
    assert measured.stopped == STOPPED_BY_USER
