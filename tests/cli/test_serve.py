import argparse
import json
import time
from pathlib import Path

import httpx
import pytest
from filelock import FileLock

from headlong.cli.main import main
from headlong.cli.serve import add_arguments
from headlong.server.settings import declared_settings
from server_process import ServerProcess
from talking_model import write_talking_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a tiny model."""
    return str(write_talking_model(tmp_path_factory.mktemp("serve") / "tiny.gguf"))


def test_every_setting_is_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--help"]) == 0
    shown = capsys.readouterr().out
    for declared in declared_settings():
        assert f"--{declared.name.replace('_', '-')}" in shown
    assert "(default: 8MiB)" in shown
    assert "None" not in shown


def test_settings_are_shown_with_where_they_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "h.toml"
    config.write_text('mtp = 4\n[[api_keys]]\nname = "ci"\nkey = "secret-of-ci"\n')
    monkeypatch.setenv("HEADLONG_MAX_RUNNING", "5")
    argv = ["serve", "my-model", "--config", str(config), "--port", "9000", "--no-page"]
    assert main([*argv, "--cors-origins", "https://a.example", "--print-config"]) == 0
    shown = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}
    assert shown["model"] == ["my-model", "--model"]
    assert shown["port"] == ["9000", "--port"]
    assert shown["page"] == ["false", "--no-page"]
    assert shown["max_running"] == ["5", "HEADLONG_MAX_RUNNING"]
    assert shown["mtp"] == ["4", str(config)]
    assert shown["cors_origins"] == ["https://a.example", "--cors-origins"]
    assert shown["head_quant"] == ["auto", "default"]
    assert "secret" not in str(shown)


def test_settings_and_address_are_there_as_json(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["serve", "--print-config", "--json", "--cors-origins", "https://a.example"]
    assert main([*argv, "--api-key", "secret-of-mine"]) == 0
    out = capsys.readouterr().out
    assert json.loads(out)["cors_origins"] == {
        "value": ["https://a.example"],
        "from": "--cors-origins",
    }
    assert "secret" not in out
    with ServerProcess(model, "--json") as server:
        assert server.process.stdout is not None
        assert json.loads(server.process.stdout.readline())["url"] == server.url
        server.signal()
        assert server.wait() == 0


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["--port", "x"], "--port is 'x'"),
        (["--mtp", "99"], "--mtp is '99'"),
        (["one", "--model", "two"], "Two models are named: one and --model two"),
        (["--config", "/nowhere.toml"], "/nowhere.toml cannot be read"),
    ],
)
def test_mistakes_are_refused_before_anything_runs(
    argv: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *argv]) == 1
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("log_format", ["human", "json"])
def test_the_banner_says_what_runs_and_where(model: str, log_format: str) -> None:
    options = ("--mtp", "off", "--max-waiting", "7", "--log-format", log_format)
    with ServerProcess(model, *options) as server:
        assert httpx.get(f"{server.url}/v1/models").json()["data"][0]["id"] == "tiny"
        server.signal()
        assert server.wait() == 0
    for fact in ("tiny.gguf", "mtp=off", "n-grams", "this machine only, no API key", "7 waiting"):
        assert fact in server.text
    assert "warning" not in server.text
    is_json = all(line.startswith("{") for line in server.lines)
    assert is_json is (log_format == "json")


def test_an_open_server_without_keys_warns(model: str) -> None:
    with ServerProcess(model, "--host", "0.0.0.0") as server:
        assert server.url
        server.signal()
        assert server.wait() == 0
    assert "everyone who reaches 0.0.0.0 can use this server" in server.text


def test_with_a_key_file_only_its_keys_are_let_in(model: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text("alice secret-of-alice\n")
    with ServerProcess(model, "--api-key-file", str(keys), "--log-format", "json") as server:
        url = f"{server.url}/v1/models"
        assert httpx.get(url).status_code == 401
        header = {"Authorization": "Bearer secret-of-alice"}
        assert httpx.get(url, headers=header).status_code == 200
        assert httpx.get(f"{server.url}/health").status_code == 200
        server.signal()
        assert server.wait() == 0
    assert '"client": "alice"' in server.text
    assert "secret-of-alice" not in server.text


def test_a_server_that_waits_for_its_model_can_be_stopped(tmp_path: Path) -> None:
    """Without a handler the first process of a container would never see the signal."""
    lock = tmp_path / "locks" / "smollm2-135m-instruct.lock"
    lock.parent.mkdir()
    environ = {"HEADLONG_CACHE": str(tmp_path)}
    with FileLock(lock), ServerProcess("smollm2-135m-instruct", environ=environ) as server:
        deadline = time.monotonic() + 30
        while "waiting for it to finish" not in server.text:
            assert time.monotonic() < deadline, server.text
            time.sleep(0.02)
        server.signal()
        assert server.wait(10) == 0
    assert server.text.endswith("Stopped.\n")


def test_arguments_have_no_defaults_of_their_own() -> None:
    """A default would look like a flag and overrule variables and the file."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    given = vars(parser.parse_args([]))
    named = {name for name, value in given.items() if value is not None}
    assert named == {"print_config", "json"}
