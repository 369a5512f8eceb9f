"""Figures: only questions that all sides answered count, and a prompt stays one draw."""

from dataclasses import replace

import pytest

from bench_parts import make_answer, make_pairs, make_prompt, make_question, make_run
from headlong.bench.figures import Group, describe_group, describe_side, group_blocks, pair_rows
from headlong.bench.rows import Row, make_row

SIDES = ("off", "auto")


def test_questions_one_side_did_not_answer_are_left_out() -> None:
    rows = make_pairs({"code": [2.0, 1.0, 4.0]})
    failed = [replace(rows[1], error="broke off"), *rows[:1], *rows[2:5]]
    blocks = pair_rows(failed, SIDES)
    assert len(blocks) == 1
    assert blocks[0]["auto"].prompt_hash == rows[2].prompt_hash


def test_groups_are_tasks_at_temperatures() -> None:
    rows = make_pairs({"code": [2.0], "chat": [1.0, 1.0]})
    rows += make_pairs({"code": [2.0]}, temperature=0.7)
    groups = group_blocks(pair_rows(rows, SIDES))
    assert [(g.task, g.temperature, len(g.blocks)) for g in groups] == [
        ("chat", 0.0, 2),
        ("code", 0.0, 1),
        ("code", 0.7, 1),
    ]


def test_group_tells_speedups_against_the_first_side() -> None:
    blocks = pair_rows(make_pairs({"code": [2.0] * 4}), SIDES)
    figures = describe_group(Group(None, None, blocks), SIDES)
    assert figures["num_prompts"] == 4
    found = figures["speedups"]["auto"]
    assert found["value"] == pytest.approx(2.0)
    assert found["decode"]["value"] == pytest.approx(2.0)
    assert (found["num_identical"], found["num_compared"]) == (4, 4)
    assert set(figures["speedups"]) == {"auto"}


def test_runs_of_one_prompt_are_one_draw() -> None:
    """Asking the same prompt ten times says nothing about other prompts."""
    rows: list[Row] = []
    for run in range(10):
        question = make_question(make_prompt(1), run=run)
        rows.append(make_row(make_run("off", question, make_answer(decode_s=2.0))))
        rows.append(make_row(make_run("auto", question, make_answer(decode_s=1.0))))
    found = describe_group(Group(None, None, pair_rows(rows, SIDES)), SIDES)["speedups"]["auto"]
    assert found["num_prompts"] == 1
    assert found["low"] is None


def test_different_tokens_are_counted_as_different() -> None:
    question = make_question(make_prompt(1))
    plain = make_row(make_run("off", question, make_answer(3, token_ids=(1, 2, 3), text="abc")))
    other = make_row(make_run("auto", question, make_answer(3, token_ids=(1, 2, 4), text="abc")))
    found = describe_group(Group(None, None, pair_rows([plain, other], SIDES)), SIDES)
    assert found["speedups"]["auto"]["num_identical"] == 0


def test_answers_of_one_token_have_no_decoding_speed() -> None:
    question = make_question(make_prompt(1))
    row = make_row(make_run("off", question, make_answer(1, ttft_s=0.5, decode_s=0.0)))
    figures = describe_side([row])
    assert figures["decode_tokens_per_second"] is None
    assert figures["tokens_per_second"] == pytest.approx(2.0)
    found = describe_group(
        Group(None, None, pair_rows([row, replace(row, side="auto")], SIDES)), SIDES
    )
    assert found["speedups"]["auto"]["value"] == pytest.approx(1.0)
    assert found["speedups"]["auto"]["decode"]["value"] is None


def test_shares_of_head_and_cache_are_of_all_prompts() -> None:
    rows = make_pairs({"code": [2.0, 2.0]})
    drafted = [
        replace(row, num_prompt_tokens=100, num_cached_tokens=cached)
        for row, cached in zip(rows[1::2], (0, 50), strict=True)
    ]
    figures = describe_side(drafted)
    assert figures["prefill_head_share"] == pytest.approx(0.1)
    assert figures["cached_share"] == pytest.approx(0.25)
    assert describe_side(rows[::2])["cached_share"] is None
    assert describe_side(rows[::2])["acceptance"] is None
