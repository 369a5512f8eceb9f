import json
from dataclasses import replace
from pathlib import Path

import pytest

from headlong.errors import RequestError
from headlong.fleet.engine_commands import EngineWish, plan_engines
from headlong.provenance import num_usable_cores

FOLDER, FILE = Path("backbone"), Path("backbone.gguf")
HEAD, HEAD_FILE = Path("head"), Path("head.gguf")
WISH = EngineWish("vllm", FOLDER, num_plain=1, num_drafting=1, num_draft_tokens=3, head=HEAD)


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models and heads are where the wishes name them."""
    monkeypatch.chdir(tmp_path)
    for folder in (FOLDER, HEAD):
        folder.mkdir()
    for file in (FILE, HEAD_FILE):
        file.touch()


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def commands(wish: EngineWish) -> list[list[str]]:
    return [list(plan.command) for plan, _ in plan_engines(wish)]


def test_each_engine_has_a_port_and_a_log_of_its_own() -> None:
    plans = [plan for plan, _ in plan_engines(replace(WISH, num_plain=3))]
    assert len({plan.url for plan in plans}) == len({plan.log_path for plan in plans}) == 4
    for plan in plans:
        assert plan.url.endswith(f":{option(list(plan.command), '--port')}")


def test_only_those_that_draft_get_the_head() -> None:
    plain, drafting = commands(WISH)
    assert "--speculative-config" not in plain
    assert json.loads(option(drafting, "--speculative-config")) == {
        "method": "eagle3",
        "model": "head",
        "num_speculative_tokens": 3,
    }
    assert [num for _, num in plan_engines(WISH)] == [0, 3]


def test_vllm_is_started_to_tell_what_the_front_reads() -> None:
    """Without the first flag no answer said how much of its prompt was cached."""
    plain, drafting = commands(WISH)
    assert "--enable-prompt-tokens-details" in plain
    assert option(plain, "--structured-outputs-config.backend") == "guidance"
    assert "--enable-prompt-tokens-details" in drafting
    assert option(drafting, "--per-request-spec-decode-metrics") == "detailed"


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        (
            {"kind": "llama.cpp", "model": FILE, "head": HEAD_FILE},
            {"-m": str(FILE), "-md": str(HEAD_FILE), "--spec-draft-n-max": "3"},
        ),
        (
            {"kind": "sglang"},
            {"--speculative-num-steps": "3", "--speculative-num-draft-tokens": "4"},
        ),
    ],
)
def test_other_kinds_are_told_in_their_own_words(
    changes: dict[str, object], options: dict[str, str]
) -> None:
    drafting = commands(replace(WISH, **changes))[1]  # type: ignore[arg-type] # its own fields
    assert {name: option(drafting, name) for name in options} == options


def test_the_users_own_options_come_last_and_whole() -> None:
    wish = replace(
        WISH,
        command="env A=1 /opt/vllm/bin/python -m vllm",
        arguments="--tensor-parallel-size 2 --note 'two words'",
        drafting_arguments="--seed 3",
    )
    plain, drafting = commands(wish)
    assert plain[:3] == ["env", "A=1", "/opt/vllm/bin/python"]
    assert plain[-4:] == ["--tensor-parallel-size", "2", "--note", "two words"]
    assert drafting[-2:] == ["--seed", "3"]


@pytest.mark.parametrize(
    ("devices", "num", "shares"),
    [
        ("0,1,2,3", 2, ["0,1", "2,3"]),
        ("4,5", 2, ["4", "5"]),
        ("0,1", 4, ["0", "1", "0", "1"]),
        ("7", 2, ["7", "7"]),
    ],
)
def test_devices_are_shared_out(devices: str, num: int, shares: list[str]) -> None:
    wish = replace(WISH, num_plain=num, num_drafting=0, environ={"CUDA_VISIBLE_DEVICES": devices})
    assert [plan.environ["CUDA_VISIBLE_DEVICES"] for plan, _ in plan_engines(wish)] == shares


def test_llama_cpps_share_the_cores() -> None:
    """Several that each took all cores wrote about a token a second: their threads spin."""
    wish = replace(WISH, kind="llama.cpp", model=FILE, head=HEAD_FILE)
    share = str(max(1, num_usable_cores() // 2))
    assert {option(command, "--threads") for command in commands(wish)} == {share}
    assert "--threads" not in commands(replace(wish, num_drafting=0))[0]


def test_engines_do_not_get_our_keys() -> None:
    wish = replace(WISH, environ={"HEADLONG_API_KEY": "secret", "PATH": "/bin"})
    assert [plan.environ for plan, _ in plan_engines(wish)] == [{"PATH": "/bin"}] * 2


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        (replace(WISH, kind="ollama"), "cannot be started"),
        (replace(WISH, head=None), "nothing says with what"),
        (replace(WISH, model=Path("nowhere")), "There is no model at nowhere"),
        (replace(WISH, head=Path("nowhere")), "There is no head at nowhere"),
        (replace(WISH, model=FILE), "the model backbone.gguf is a GGUF file"),
        (replace(WISH, head=HEAD_FILE), "the head head.gguf is a GGUF file"),
        (replace(WISH, kind="llama.cpp", model=FILE), "GGUF files; the head head is none"),
        (replace(WISH, kind="llama.cpp"), "reads GGUF files"),
        (replace(WISH, command="'vllm"), "engine_command is .* no command line"),
        (replace(WISH, arguments='"--seed'), "engine_args is .* no command line"),
        (replace(WISH, drafting_arguments="\\"), "speculative_args is .* no command line"),
    ],
)
def test_what_could_never_start_is_refused(changed: EngineWish, problem: str) -> None:
    with pytest.raises(RequestError, match=problem):
        plan_engines(changed)
