import pytest

from headlong.cli.progress_bar import ProgressBar


def test_no_terminal_gets_one_plain_line(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar() as bar:
        bar.begin("some-model", 92_871_040, 0)
        bar.update(1_000)
        bar.note("waiting [for] it")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "pulling some-model (92.9 MB)\nwaiting [for] it\n"


def test_terminal_gets_a_bar_with_bytes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "90")
    with ProgressBar() as bar:
        bar.begin("some-model", 2_000_000, 500_000)
        bar.update(1_000_000)
    assert "1.0/2.0 MB" in capsys.readouterr().err


def test_model_that_is_here_draws_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar():
        pass
    assert capsys.readouterr().err == ""
