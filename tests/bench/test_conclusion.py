"""Verdicts: right words for gains, losses and doubt; never a claim whose interval includes 1."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlong.bench.conclusion import (
    Conclusion,
    Gain,
    GainKind,
    Wording,
    choose_setting,
    format_speedup,
    judge,
)


def finding(
    low: float | None, value: float, high: float | None, group: str = "", **fields: object
) -> Gain:
    candidate, num_prompts = str(fields.get("candidate", "auto")), fields.get("num_prompts", 20)
    assert isinstance(num_prompts, int)
    return Gain(group, candidate, value, low, high, num_prompts)


def words(overall: Gain, *groups: Gain, wording: Wording = Wording.MTP) -> str:
    return judge([overall], groups, "off", wording).words


def test_gain_is_said_with_setting_and_interval() -> None:
    assert words(finding(1.7, 1.8, 1.9)) == "Enable it, auto: 1.80 × [1.70–1.90]."
    four = finding(1.7, 1.8, 1.9, candidate="4")
    assert words(four) == "Enable it, K=4: 1.80 × [1.70–1.90]."


def test_tasks_that_lose_are_excepted() -> None:
    said = words(
        finding(1.7, 1.8, 1.9),
        finding(2.0, 2.2, 2.4, "code"),
        finding(0.9, 0.93, 0.96, "stories at 0.9"),
        finding(0.99, 1.0, 1.01, "qa"),
        finding(0.8, 1.2, 1.9, "chat"),
    )
    assert said == (
        "Enable it, auto: 1.80 × [1.70–1.90]; leave it off for stories at 0.9 "
        "(0.93 × [0.90–0.96]); no difference for qa (1.00 × [0.99–1.01]); not enough data to tell "
        "for chat."
    )


def test_loss_is_said_and_tasks_that_gain_are_excepted() -> None:
    said = words(
        finding(0.85, 0.9, 0.95), finding(1.1, 1.2, 1.3, "code"), finding(0.7, 0.8, 0.9, "chat")
    )
    assert said == (
        "Leave it off: auto runs at 0.90 × [0.85–0.95]; enable it for code (1.20 × [1.10–1.30])."
    )


def test_small_interval_around_one_is_no_difference() -> None:
    assert words(finding(0.98, 1.0, 1.02)) == (
        "It makes no difference: auto runs at 1.00 × [0.98–1.02]."
    )


def test_wide_interval_asks_for_more_prompts() -> None:
    said = words(finding(0.9, 1.2, 1.6, num_prompts=8))
    assert said.startswith("Not enough data to tell: 1.20 × [0.90–1.60] after 8 prompts; run more")
    assert "should do" in said


def test_single_prompt_is_not_enough() -> None:
    assert words(finding(None, 2.0, None, num_prompts=1)).startswith(
        "Not enough data to tell: 2.00 × [1 prompt] after 1 prompt; run more prompts"
    )


def test_three_prompts_that_agree_prove_nothing() -> None:
    assert finding(1.5, 1.6, 1.7, num_prompts=3).outcome == GainKind.UNKNOWN
    assert finding(1.5, 1.6, 1.7, num_prompts=4).outcome == GainKind.GAIN


def test_gain_that_rounds_to_one_is_not_claimed() -> None:
    """The reader sees two digits: [1.00–1.02] must not stand beside "enable it"."""
    assert finding(1.004, 1.01, 1.02).outcome == GainKind.SAME
    assert finding(1.004, 1.05, 1.1).outcome == GainKind.UNKNOWN
    assert finding(0.9, 0.95, 0.996).outcome == GainKind.UNKNOWN


@given(
    value=st.floats(0.1, 10),
    below=st.floats(0, 2),
    above=st.floats(0, 2),
    num_prompts=st.integers(1, 100),
)
def test_no_claim_includes_one(value: float, below: float, above: float, num_prompts: int) -> None:
    one = finding(value / (1 + below), value, value * (1 + above), num_prompts=num_prompts)
    said = words(one)
    assert one.low is not None
    assert one.high is not None
    if one.low <= 1 <= one.high:
        assert not said.startswith(("Enable", "Leave"))
        assert choose_setting([one], "off") in ("off", None)
    if said.startswith("Enable"):
        assert one.low > 1


def test_several_candidates_are_ranked_by_what_is_sure() -> None:
    """K=4 has the larger speed-up, but K=2's is surer."""
    two, four = finding(1.4, 1.5, 1.6, candidate="2"), finding(1.1, 1.7, 2.4, candidate="4")
    verdict = judge([two, four], [], "off", Wording.MTP)
    assert (verdict.candidate, verdict.setting) == ("2", "2")


def test_every_task_gets_its_own_setting() -> None:
    groups = [
        finding(1.2, 1.3, 1.4, "code", candidate="auto"),
        finding(1.5, 1.6, 1.7, "code", candidate="4"),
        finding(0.8, 0.85, 0.9, "chat", candidate="auto"),
        finding(0.6, 0.65, 0.7, "chat", candidate="4"),
        finding(0.8, 1.1, 1.3, "qa", candidate="auto"),
        finding(0.6, 0.65, 0.7, "qa", candidate="4"),
    ]
    overall = [finding(1.1, 1.2, 1.3), finding(0.9, 1.0, 1.2, candidate="4")]
    verdict: Conclusion = judge(overall, groups, "off", Wording.MTP)
    assert verdict.by_group == {"code": "4", "chat": "off", "qa": None}
    assert verdict.setting == "auto"


@pytest.mark.parametrize(
    ("numbers", "opening"),
    [
        ((1.3, 1.4, 1.5), "B is faster than A: 1.40 × [1.30–1.50]."),
        ((0.7, 0.8, 0.9), "B is slower than A: 0.80 × [0.70–0.90]."),
        ((0.98, 1.0, 1.02), "No difference: B against A runs at 1.00 × [0.98–1.02]."),
        ((0.7, 1.0, 1.4), "B against A: Not enough data to tell: 1.00 × [0.70–1.40] after"),
    ],
)
def test_servers_are_faster_or_slower(numbers: tuple[float, float, float], opening: str) -> None:
    verdict = judge([finding(*numbers, candidate="B")], [], "A", Wording.SIDES)
    assert verdict.words.startswith(opening)


def test_speedups_are_written_one_way() -> None:
    assert format_speedup(1.4213, 1.349, 1.5) == "1.42 × [1.35–1.50]"
    assert format_speedup(None, None, None) == "not measured"
