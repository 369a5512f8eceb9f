import os
from pathlib import Path

import pytest

from headlong.cli.clipboard import copy_text
from headlong.errors import RequestError


def put_program(folder: Path, name: str, script: str) -> None:
    """Put a program where it is found."""
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


@pytest.mark.skipif(os.name != "posix", reason="needs a POSIX shell")
def test_first_program_that_works_gets_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    put_program(tmp_path, "wl-copy", "exit 1")
    put_program(tmp_path, "xclip", f"cat > {tmp_path}/copied")
    assert copy_text("hé\n") == "xclip"
    assert (tmp_path / "copied").read_text() == "hé\n"


def test_without_program_and_terminal_there_is_no_clipboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RequestError, match="There is no clipboard"):
        copy_text("x")


def test_terminal_is_asked_where_there_is_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert "terminal" in copy_text("hi")
    assert capsys.readouterr().out == "\033]52;c;aGk=\a"
