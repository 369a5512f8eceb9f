import json
from pathlib import Path

import pytest

from headlong.cli.main import main
from load_parts import make_load_document, make_load_plan, make_log


@pytest.fixture
def measured(tmp_path: Path) -> str:
    """Results of a load in which drafts halved the time of every answer."""
    plan = make_load_plan()
    log = make_log(plan, lambda mode, level, name: (1.0 if mode == "off" else 0.5) / level.value)
    path = tmp_path / "results.json"
    path.write_text(json.dumps(make_load_document(log, plan)))
    return str(path)


FLEET = ("--requests-per-second", "28", "--cost-per-hour", "3", "--spare", "0")


def test_a_fleet_is_told_in_numbers(measured: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--fleet", measured, *FLEET, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    # 28 / 0.7 = 40 a second: 10 plain replicas of 4 a second, or 5 that draft and a plain one.
    assert told["fleet"]["plain_only"]["replicas"] == 10
    best = {pool["name"]: pool["replicas"] for pool in told["fleet"]["best"]["pools"]}
    assert best == {"plain": 1, "speculative": 5}
    # 18 an hour for 28 answers of 10 tokens a second.
    cost = told["fleet"]["best"]["cost_per_million_tokens"]
    assert cost == pytest.approx(18 / (280 * 3600) * 1e6)
    assert told["provenance"]["argv"]


def test_a_fleet_is_told_in_words(measured: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--fleet", measured, *FLEET]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "28 requests a second need 1 plain replica and 5 speculative replicas" in shown
    assert "against 10 without drafts" in shown
    assert "it may carry more" in shown


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--fleet", "x.json"], "--requests-per-second 20"),
        (["--fleet", "x.json", *FLEET], "cannot be read"),
        (["--fleet", "x.json", "--from", "y.json"], "Both --fleet and --from"),
        (["--requests-per-second", "5"], "without --fleet"),
    ],
)
def test_half_a_question_is_refused(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *argv]) == 1
    assert words in " ".join(capsys.readouterr().err.split())
