"""`headlong bench pass`: a table for people and the numbers on the last line."""

import json
from pathlib import Path

import pytest

from headlong.cli.main import main
from headlong.models.model_config import read_config
from headlong.ops import backends
from headlong.weights.checkpoint import open_checkpoint


def test_last_line_holds_the_numbers(
    tiny_model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["bench", "pass", "-m", str(tiny_model_path), "--rows", "1,2", "--context", "8"]
    assert main([*argv, "--prefill", "16", "--rounds", "2", "--threads", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    document = json.loads(lines[-1])
    assert set(document["rows"]) == {"1", "2"}
    assert document["backend"] == "native"
    assert document["load_s"] > 0
    for name in ("bandwidth_gb_s", "bytes_per_pass", "draft_step_ms", "pick_ms", "python_share"):
        assert name in document
    assert any("memory bandwidth" in line for line in lines)
    memory = document["memory"]
    assert memory["positions"] == read_config(open_checkpoint(tiny_model_path)).context_length
    assert all(memory[name] > 0 for name in ("weights_bytes", "head_bytes", "kv_bytes"))
    assert memory["resident_bytes"] == document["resident_bytes"]
    assert any("keys and values" in line for line in lines)


def test_json_is_all_there_is_on_standard_output(
    tiny_model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["bench", "pass", "-m", str(tiny_model_path), "--rows", "1", "--context", "8"]
    assert main([*argv, "--prefill", "16", "--rounds", "1", "--json"]) == 0
    shown = capsys.readouterr()
    assert set(json.loads(shown.out)["rows"]) == {"1"}
    assert "memory bandwidth" in shown.err


@pytest.mark.parametrize("option", ["--context", "--prefill"])
def test_more_positions_than_the_model_has_are_refused(
    option: str, tiny_model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limit = read_config(open_checkpoint(tiny_model_path)).context_length
    small = {"--context": "8", "--prefill": "8"} | {option: str(limit + 1)}
    words = [word for pair in small.items() for word in pair]
    assert main(["bench", "pass", "-m", str(tiny_model_path), "--rows", "1", *words]) == 1
    error = capsys.readouterr().err
    assert f"{option} {limit + 1}" in error
    assert f"context has {limit:,}" in error


def test_impossible_thread_counts_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "pass", "--threads", "0"]) == 1
    error = capsys.readouterr().err
    assert "--threads is 0." in error
    assert "use all cores" in error


@pytest.mark.parametrize("rows", ["0", "two", "1,,2", ""])
def test_impossible_row_counts_are_refused(rows: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "pass", "--rows", rows]) == 1
    assert "cannot be measured" in capsys.readouterr().err


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CUDA backend in plain torch, where rounds run as on a card."""
    torch = pytest.importorskip("torch")
    from headlong.ops.cuda import backend as cuda_backend
    from headlong.ops.cuda.ops import CudaOps

    assert cuda_backend
    torch.set_num_threads(1)
    monkeypatch.setitem(backends._makers, "cuda", lambda threads: CudaOps(torch.device("cpu")))


def test_whole_rounds_are_measured_where_a_device_makes_them(
    tiny_model_path: Path, capsys: pytest.CaptureFixture[str], on_device: None
) -> None:
    argv = ["bench", "pass", "-m", str(tiny_model_path), "--backend", "cuda", "--rows", "1,3"]
    assert main([*argv, "--context", "8", "--prefill", "16", "--rounds", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    document = json.loads(lines[-1])
    assert set(document["rows"]) == set(document["rows_in_a_row"]) == {"1", "3"}
    assert "whole rounds" in document["note"]
    assert all(document[name] is not None for name in ("draft_step_ms", "pick_ms", "host_share"))
    assert document["bandwidth_gb_s"] > 0 < document["prefill_tokens_per_s"]
    assert any("host's share of a round" in line for line in lines)


def test_more_rows_than_a_round_has_are_refused(
    tiny_model_path: Path, capsys: pytest.CaptureFixture[str], on_device: None
) -> None:
    argv = ["bench", "pass", "-m", str(tiny_model_path), "--backend", "cuda", "--rows", "18"]
    assert main([*argv, "--context", "8", "--prefill", "16"]) == 1
    assert "18 rows cannot be measured" in capsys.readouterr().err
