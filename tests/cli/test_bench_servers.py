"""`headlong bench --url`: servers of any making, compared now or later, also when they fail."""

import json
import socket
from pathlib import Path

import pytest

from headlong.cli.main import main
from last_line import read_json
from other_server import run_other_server
from talking_model import write_talking_model


def test_two_servers_are_compared(prompts: str, capsys: pytest.CaptureFixture[str]) -> None:
    with run_other_server(token_s=0.04) as slow, run_other_server() as fast:
        argv = ["bench", prompts, "--url", slow.url, "--url", fast.url, "--max-tokens", "6"]
        assert main([*argv, "--json"]) == 0
        document = read_json(capsys)
    # How sure it is depends on how busy this machine is; that B is faster does not.
    assert document["speedup"] > 1
    assert document["verdict"].startswith(("B is faster than A: ", "B against A: Not enough"))
    assert document["setup"]["model"] == "other-model"
    assert document["token_counter"] == "`usage` of the servers' answers"
    assert document["identical"]["all"] is True
    assert len(slow.bodies) == len(fast.bodies) == 6  # five, and one to warm up
    assert slow.bodies[1:] != []


def test_one_server_with_two_bodies_is_a_and_b(
    prompts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with run_other_server() as other:
        argv = ["bench", prompts, "--url", other.url, "--max-tokens", "4", "--json", "-m", "mine"]
        assert main([*argv, "--body-a", '{"mtp": "off"}', "--body-b", '{"mtp": "auto"}']) == 0
        document = read_json(capsys)
    assert {body["mtp"] for body in other.bodies} == {"off", "auto"}
    assert {body["model"] for body in other.bodies} == {"mine"}
    # Both warm up, then ask five questions, each read ahead so that no side profits from the other.
    assert [body["max_tokens"] for body in other.bodies].count(1) == 10 + 2
    assert document["notes"][0].startswith("A and B are one server")
    assert [side["label"].rpartition(" ")[2] for side in document["sides"]] == [
        "(mtp=off)", "(mtp=auto)",
    ]  # fmt: skip


def test_baseline_now_and_comparison_later(
    prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with run_other_server(token_s=0.04) as other:
        argv = ["bench", prompts, "--url", other.url, "--max-tokens", "6", "-q", "--out"]
        assert main([*argv, str(tmp_path / "before")]) == 0
        assert "Recorded as a baseline" in capsys.readouterr().out
        other.token_s = 0.0
        assert main([*argv, str(tmp_path / "after")]) == 0
    capsys.readouterr()
    compare = [
        "bench",
        "compare",
        str(tmp_path / "before"),
        str(tmp_path / "after" / "results.json"),
    ]
    assert main([*compare, "--json", "--out", str(tmp_path / "diff")]) == 0
    document = read_json(capsys)
    assert document["speedup"] > 1
    assert document["verdict"].startswith(("new is faster than old: ", "new against old: "))
    assert document["verdict"] in (tmp_path / "diff" / "report.html").read_text()


def test_server_that_dies_leaves_partial_results(
    prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with run_other_server() as good, run_other_server(dies_after=3) as dying:
        argv = ["bench", prompts, "--url", good.url, "--url", dying.url, "--max-tokens", "6"]
        assert main([*argv, "--out", str(out)]) == 1
    shown = capsys.readouterr()
    document = json.loads((out / "results.json").read_text())
    assert document["num_answered"] == 2
    assert len(document["failures"]) == 3
    assert "did not answer 3 questions in a row" in document["stopped"]
    assert "3 answers failed and are left out; the first:" in shown.out
    assert "broke off" in shown.out


def test_unreachable_server_is_said_at_once(
    prompts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    assert main(["bench", prompts, "--url", url]) == 1
    error = capsys.readouterr().err
    assert f"{url}/v1 cannot be reached" in error
    assert "Is the server running" in error


def test_key_comes_from_the_environment(
    prompts: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "s3cret")
    with run_other_server() as other:
        argv = ["bench", prompts, "--url", other.url, "--max-tokens", "2", "--json"]
        assert main([*argv, "--api-key-env", "MY_KEY"]) == 0
        assert "s3cret" not in capsys.readouterr().out
        assert set(other.keys) == {"Bearer s3cret"}
        assert main([*argv, "--api-key-env", "NO_SUCH_KEY"]) == 1
    assert "The variable NO_SUCH_KEY is not set." in capsys.readouterr().err


def test_tokens_of_servers_can_be_counted_by_us(
    prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(write_talking_model(tmp_path / "tiny.gguf"))
    with run_other_server() as other:
        argv = ["bench", prompts, "--url", other.url, "--max-tokens", "2", "--json"]
        assert main([*argv, "--tokenizer", model]) == 0
    document = read_json(capsys)
    assert document["token_counter"] == "the answers' texts, through one tokenizer"
    assert {run["num_tokens"] for run in document["runs"]} == {len("tok0 tok1 ")}  # it speaks bytes
