import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from headlong.cli.main import main
from headlong.cli.verbs import VERBS
from headlong.errors import SourceError

HEAVY = ("numpy", "rich", "gguf", "huggingface_hub", "tokenizers", "platformdirs")


def install_verb(monkeypatch: pytest.MonkeyPatch, outcome: object) -> None:
    """Make `headlong pull` return or raise `outcome`."""

    def run(args: object) -> object:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    verb = ModuleType("headlong.cli.pull")
    verb.__dict__.update(add_arguments=lambda parser: parser.add_argument("x", nargs="*"), run=run)
    monkeypatch.setitem(sys.modules, "headlong.cli.pull", verb)


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_help_teaches_every_verb_with_examples(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {verb} " in out for verb in VERBS)
    assert "examples:" in out


def test_help_starts_quickly_and_loads_nothing_heavy() -> None:
    program = (
        "import sys; from headlong.cli.main import main; main(['--help'])\n"
        f"sys.exit(str([m for m in {HEAVY} if m in sys.modules] or ''))"
    )
    best = 1.0
    # The best of a few: what is asked is the program's own cost, not that of a busy machine.
    for _ in range(5):
        started = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        best = min(best, time.perf_counter() - started)
        assert done.stderr.strip() == ""
    assert best < 0.3


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_does_not_wait_for_numpy(verb: str) -> None:
    program = (
        f"import sys; from headlong.cli.main import main; main([{verb!r}, '--help'])\n"
        "heavy = ('numpy', 'gguf', 'tokenizers', 'huggingface_hub', 'torch', 'matplotlib')\n"
        "sys.exit(str([m for m in heavy if m in sys.modules] or ''))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr.strip() == ""
    assert f"usage: headlong {verb} " in done.stdout


def test_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("headlong ")


def test_unknown_verb_names_the_near_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["genrate"]) == 2
    assert "did you mean 'generate'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "guess"),
    [
        (["smolm2"], "to talk with a model: headlong run smollm2-135m-instruct"),
        (["qwen-coder-0.5b"], "to talk with a model: headlong run qwen-coder-0.5b"),
        (["run", "x", "--temprature", "1"], "did you mean --temperature?"),
        (["bench", "grid", "--tsak=chat", "x"], "did you mean --task?"),
    ],
)
def test_slip_is_guessed(argv: list[str], guess: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert guess in capsys.readouterr().err


def test_model_file_in_the_place_of_a_verb_is_guessed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "my.gguf"
    path.write_bytes(b"GGUF")
    assert main([str(path)]) == 2
    assert f"headlong run {path}" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["--unknown"], ["pull", "--unknown"], ["pull", "a", "b"]])
def test_usage_errors_exit_with_two(argv: list[str]) -> None:
    assert main(argv) == 2


def test_refusal_is_problem_and_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install_verb(monkeypatch, SourceError("It is gone.", "Bring it back."))
    assert main(["pull"]) == 1
    assert capsys.readouterr().err == "error: It is gone.\n  → Bring it back.\n"


def test_interruption_is_quiet_and_says_what_is_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install_verb(monkeypatch, KeyboardInterrupt("2 of 6 parts are kept."))
    assert main(["pull"]) == 130
    assert capsys.readouterr().err == "\n2 of 6 parts are kept.\n"
    install_verb(monkeypatch, KeyboardInterrupt())
    assert main(["pull"]) == 130
    assert capsys.readouterr().err == "\nStopped.\n"


def test_bug_is_owned_up_to_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HEADLONG_DEBUG", raising=False)
    install_verb(monkeypatch, ZeroDivisionError("division by zero"))
    assert main(["pull", "x y"]) == 70
    err = capsys.readouterr().err
    assert "this is a bug in headlong: ZeroDivisionError: division by zero" in err
    assert "HEADLONG_DEBUG=1 headlong pull 'x y'" in err
    monkeypatch.setenv("HEADLONG_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["pull", "x"])


def test_exit_code_of_the_verb_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    install_verb(monkeypatch, 3)
    assert main(["pull"]) == 3


@pytest.mark.skipif(os.name != "posix", reason="needs a POSIX pipe")
def test_reader_that_leaves_early_causes_no_noise() -> None:
    program = "from headlong.cli.main import main; import sys; sys.exit(main(['--version']))"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert done.stderr == b""
    assert done.returncode == 141


@pytest.mark.parametrize("verb", VERBS)
def test_verb_help_has_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    out = capsys.readouterr().out
    assert "examples:\n  headlong " in out
    assert verb == "completion" or "--json" in out


def test_module_runs_like_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "headlong", "nope"], capture_output=True)
    assert done.returncode == 2


def run_python(
    program: str, shell: str = "", **environment: str
) -> subprocess.CompletedProcess[bytes]:
    """Run a program with this at the end of its shell command."""
    command = f"{shlex.join([sys.executable, '-c', program])} {shell}"
    return subprocess.run(
        command, shell=True, capture_output=True, check=False, env=os.environ | environment
    )


MAIN = "import sys; from headlong.cli.main import main; sys.exit(main({}))"


def test_output_that_lacks_letters_shows_others() -> None:
    done = run_python(MAIN.format(["pull", "/n\u00f6/x.gguf"]), PYTHONIOENCODING="ascii")
    assert done.returncode == 1
    assert b"error: " in done.stderr
    assert b"/n?/x.gguf" in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("shell", [">/dev/full", ">&-"])
def test_output_that_cannot_be_written_is_no_bug(shell: str) -> None:
    done = run_python(MAIN.format(["--version"]), shell)
    assert done.returncode == 1
    assert done.stderr.startswith(b"error: The output cannot be written: ")
    assert done.stderr.count(b"\n") == 2


def test_all_streams_closed_is_survived() -> None:
    assert run_python(MAIN.format(["nope"]), "<&- >&- 2>&-").returncode == 2
