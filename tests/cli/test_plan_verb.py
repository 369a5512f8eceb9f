import json
from pathlib import Path
from typing import Any

import pytest

from headlong.cli.main import main
from headlong.heads.head_files import save_head
from headlong.llm import LLM
from headlong.models.model_config import read_config
from headlong.weights.checkpoint import open_checkpoint
from random_heads import random_nextn
from talking_model import write_talking_model

GIVEN = ("--tokens-per-second", "50", "--prefill-tokens-per-second", "1000", "--speedup", "2")
WORK = (
    "--tasks-per-hour", "1000", "--steps", "3", "--prompt-tokens", "1000", "--new-tokens", "100",
    "--tool-tokens", "50", "--tool-seconds", "2", "--reuse", "0.5", "--utilisation", "0.5",
)  # fmt: skip


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a tiny model whose context holds the workload."""
    path = tmp_path_factory.mktemp("plan") / "tiny.gguf"
    return str(write_talking_model(path, context_length=2048))


def plan(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    """Return the JSON of a plan."""
    assert main(["plan", "--json", *argv]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_given_rates_need_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    told = plan(capsys, *GIVEN, *WORK, "--cost-per-hour", "2", "--worker-cores", "4")
    # 1,000 × (2.275 + 6) s / 3,600 / 0.5 = 4.597; with MTP 1,000 × 5.275 s: 2.93.
    assert told["plain"]["workers"] == 5
    assert told["mtp"]["workers"] == 3
    assert told["plain"]["cost_per_hour"] == 10.0
    assert told["mtp"]["cost_per_task"] == pytest.approx(0.006)
    assert told["mtp"]["cores"] == 12
    assert told["memory"] is None
    assert told["speedup"] == 2.0
    assert told["workload"]["last_context"] == 1400


def test_plan_is_said_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *GIVEN, *WORK, "--cost-per-hour", "2"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "1000 tasks an hour need 5 workers without MTP and 3 workers with it" in shown
    assert "a task takes 12.3 s or 9.3 s" in shown
    # 6 of 12.275 seconds are written; the task gets 12.275 / 9.275 as fast.
    assert "Writing is 49% of a task's time; MTP makes it 2.00 × as fast" in shown
    assert "the whole task 1.32 ×, and saves 4.00 an hour, 40%." in shown


def test_slower_mtp_is_said_to_be_left_off(capsys: pytest.CaptureFixture[str]) -> None:
    told = plan(capsys, *GIVEN[:-1], "0.8", *WORK)
    assert "leave it off" in " ".join(told["words"])


def test_one_side_is_planned_alone(capsys: pytest.CaptureFixture[str]) -> None:
    told = plan(capsys, *GIVEN[:-2], *WORK)
    assert told["mtp"] is None
    assert told["words"] == ["1000 tasks an hour need 5 workers; a task takes 12.3 s."]


def test_memory_is_what_the_model_takes(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_head(tmp_path / "head", random_nextn(read_config(open_checkpoint(Path(tiny)))))
    told = plan(
        capsys, *GIVEN, *WORK, "-m", tiny, "--head", str(tmp_path / "head"), "--concurrency", "3",
        "--backend", "numpy", "--prefix-cache", "5",
    )  # fmt: skip
    llm = LLM.load(tiny, head=tmp_path / "head", backend="numpy")
    assert llm.head is not None
    memory = told["memory"]
    assert (memory["context"], memory["concurrency"]) == (1400, 3)
    assert memory["kv_bytes"] == 3 * llm.backbone.make_cache().bytes_for(1400)
    assert memory["head_kv_bytes"] == 3 * llm.head.make_cache().bytes_for(1400)
    assert memory["head_bytes"] > 0
    assert memory["prefix_bytes"] == 5_000_000
    assert memory["process_bytes"] > 10_000_000
    parts = ("weights_bytes", "head_bytes", "kv_bytes", "head_kv_bytes", "prefix_bytes")
    assert memory["mtp_bytes"] == sum(memory[name] for name in (*parts, "process_bytes"))


def test_contexts_default_to_the_tasks_under_way(
    tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = plan(capsys, *GIVEN, *WORK, "-m", tiny, "--backend", "numpy")
    # 1,000 × 12.275 s / 3,600 = 3.41 tasks at 5 workers, 2.58 at 3: one each.
    assert told["memory"]["concurrency"] == 1
    # The context of one task does not fit into nothing: reuse is a wish then.
    told = plan(capsys, *GIVEN, *WORK, "-m", tiny, "--backend", "numpy", "--prefix-cache", "0")
    assert "To find 50% of a context again" in told["words"][-1]


def test_loop_that_outgrows_the_model_is_refused(
    tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *GIVEN, *WORK, "-m", tiny, "--steps", "9"]) == 1
    assert "grows to 2,300 tokens; the model's holds 2,048" in capsys.readouterr().err


def test_model_is_measured_when_nothing_is_given(
    tiny: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headlong.bench.capacity.MEASURED_TOKENS", 4)
    monkeypatch.setattr("headlong.bench.capacity.TIME_BUDGET_S", 0.5)
    told = plan(capsys, *WORK, "-m", tiny, "--backend", "numpy")
    assert told["speed_source"].startswith("measured here")
    assert told["plain"]["tokens_per_second"] > 0
    assert told["mtp"]["prefill_tokens_per_second"] > 0


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--tokens-per-second", "5"], "Give --tokens-per-second and --prefill"),
        (["--speedup", "2"], "Give --tokens-per-second and --prefill"),
        ([*GIVEN, "--from", "x.json"], "Give one of them"),
        ([*GIVEN, "--tasks-per-hour", "0"], "a number above 0"),
        ([*GIVEN, "--utilisation", "1.5"], "above 0 and at most 1"),
        ([*GIVEN, "--context", "0"], "1 or more"),
        ([*GIVEN, "--cost-per-hour", "-1"], "0 or more"),
        (["--from", "nowhere.json"], "results.json"),
    ],
)
def test_impossible_plans_are_refused_in_words(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *argv]) == 1
    assert words in capsys.readouterr().err
