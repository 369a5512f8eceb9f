import json
from pathlib import Path

import pytest

from headlong.cli.output import format_bytes, format_path, print_error, printable, write_json
from headlong.errors import HeadlongError


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1.0 kB"),
        (999_960, "1.0 MB"),
        (98_362_432, "98.4 MB"),
        (1_117_320_768, "1.12 GB"),
    ],
)
def test_sizes_are_written_for_people(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text


def test_home_folder_is_written_short(tmp_path: Path) -> None:
    assert format_path(Path.home() / "a/b") == "~/a/b"
    assert format_path(tmp_path) == str(tmp_path)


def test_error_is_two_lines_and_brackets_survive(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(HeadlongError("[bold]x[/bold] " + "is wrong " * 30, "Do y."))
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("error: [bold]x[/bold] is wrong")
    assert second == "  → Do y."


def test_json_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    write_json({"a": [1, 2], "b": "x\ny"})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"a": [1, 2], "b": "x\ny"}


def test_escape_sequences_never_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert printable("a\x1b]0;title\x07\tb\n\x9b") == "a�]0;title�\tb\n�"
    print_error(HeadlongError("It is \x1b[31m.", "Say\nit \x1b[0m."))
    shown = capsys.readouterr().err
    assert "\x1b" not in shown
    assert "Say\nit �[0m." in shown
