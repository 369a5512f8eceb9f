import shutil
import subprocess
from pathlib import Path

import pytest

from headlong.cli.command_specs import read_command_specs
from headlong.cli.main import main
from headlong.cli.verbs import VERBS, make_verb_parser
from headlong.weights.store import Store, StoredModel

EXPECTED = [
    ("headlong ru", "run"),
    ("headlong run smollm2-1", "smollm2-135m-instruct"),
    ("headlong bench gr", "grid"),
    ("headlong run x --draft-m", "--draft-model"),
    ("headlong chat --mtp o", "off"),
    ("headlong bench grid --quant q8", "q8"),
    ("headlong completion f", "fish"),
]


def script_of(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the script for a shell."""
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def test_every_option_of_every_command_is_known() -> None:
    specs = {shape.words: shape for shape in read_command_specs()}
    assert set(VERBS) < set(specs)
    for words, shape in specs.items():
        options = {name for option in shape.options for name in option.names}
        assert options == set(make_verb_parser(words)._option_string_actions)


def test_values_are_known_by_kind() -> None:
    (run,) = [shape for shape in read_command_specs() if shape.words == "run"]
    value_kind = {option.names[0]: option.value_kind for option in run.options}
    chosen = ["--drafter", "--draft-model", "--file", "--seed", "--json", "--mtp"]
    kinds = ["choice", "model", "path", "text", "nothing", "choice"]
    assert [value_kind[name] for name in chosen] == kinds
    assert run.positionals[0].value_kind == "model"


@pytest.mark.parametrize(("line", "expected"), EXPECTED)
def test_bash_completes(line: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash")
    words = " ".join(f"'{word}'" for word in line.split(" "))
    ask = f"COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _headlong\n"
    script = f'{script_of("bash", capsys)}{ask}printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run([bash, "--norc", "-c", script], capture_output=True, text=True)
    assert done.stderr == ""
    assert expected in done.stdout.splitlines()


@pytest.mark.parametrize(("line", "expected"), EXPECTED)
def test_fish_completes(
    line: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fish = shutil.which("fish")
    if fish is None:
        pytest.skip("needs fish")
    script = f'{script_of("fish", capsys)}complete -C "{line}"'
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [fish, "--no-config", "-c", script], capture_output=True, text=True, env=environment
    )
    assert expected in [row.split("\t")[0] for row in done.stdout.splitlines()]


def test_pulled_models_are_offered_and_nothing_a_shell_would_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADLONG_CACHE", str(tmp_path))
    for name in ("org/good-model", "bad$(touch x)"):
        stored = StoredModel(name, tmp_path, (), "hub:x", "mit", "org", "", "")
        Store().record(stored)
    script = script_of("bash", capsys)
    assert "org/good-model" in script
    assert "touch x" not in script


def test_zsh_understands_its_script(capsys: pytest.CaptureFixture[str]) -> None:
    zsh = shutil.which("zsh")
    if zsh is None:
        pytest.skip("needs zsh")
    done = subprocess.run([zsh, "-f", "-n"], input=script_of("zsh", capsys), text=True)
    assert done.returncode == 0
