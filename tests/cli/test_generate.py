import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from headlong.cli.main import main
from headlong.config import SamplingParams
from headlong.llm import LLM
from talking_model import STUTTER, write_talking_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a tiny model."""
    return str(write_talking_model(tmp_path_factory.mktemp("generate") / "tiny.gguf"))


def pipe(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Make `text` the standard input."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return the JSON document, which must be all there is on standard output."""
    read: dict[str, Any] = json.loads(capsys.readouterr().out)
    return read


def test_default_model_answers_and_sums_up(
    default_llm: LLM, capsys: pytest.CaptureFixture[str]
) -> None:
    """The real thing, from prompt to summary."""
    prompt = "What is the capital of France?"
    argv = ["generate", *prompt.split(), "--max-tokens", "8", "--seed", "7"]
    assert main(argv) == 0
    shown = capsys.readouterr()
    messages = [{"role": "user", "content": prompt}]
    assert shown.out == default_llm.generate(messages, max_tokens=8, seed=7).text + "\n"
    for fact in ("8 tokens", "tokens/s", "acceptance length", "prompt 37 in", "seed 7"):
        assert fact in shown.err


def test_json_holds_the_whole_answer(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["generate", "-m", model, "hello", "--max-tokens", "12", "--logprobs", "2", "--json"]
    assert main([*argv, "--seed", "3", "-k", "4"]) == 0
    answer = document(capsys)
    out = LLM.load(model).generate(
        [{"role": "user", "content": "hello"}], max_tokens=12, seed=3, mtp=4, logprobs=2
    )
    assert answer["text"] == out.text
    assert answer["token_ids"] == list(out.token_ids)
    assert answer["finish_reason"] == out.finish_reason
    assert answer["num_prompt_tokens"] == out.num_prompt_tokens
    assert answer["stats"] == json.loads(json.dumps(out.stats.to_dict()))
    assert answer["seed"] == 3
    assert answer["mtp"] == 4
    assert answer["model"] == "tiny.gguf"
    assert answer["drafter"] == "ngram"
    assert answer["timings"]["num_tokens"] == 11
    assert [one["token_id"] for one in answer["logprobs"]] == answer["token_ids"]
    assert len(answer["logprobs"][0]["top"]) == 2


def test_raw_text_is_continued_as_it_stands(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(monkeypatch, "12\n")
    assert main(["generate", "-m", model, "--raw", "--json", "--max-tokens", "2"]) == 0
    assert document(capsys)["num_prompt_tokens"] == 2  # "12" and the line break


def test_system_message_goes_before_the_prompt(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["generate", "-m", model, "hi", "--system", "abc", "--json", "--max-tokens", "2"]
    assert main(argv) == 0
    messages = [{"role": "system", "content": "abc"}, {"role": "user", "content": "hi"}]
    assert document(capsys)["num_prompt_tokens"] == len(LLM.load(model).encode(messages))


@pytest.mark.parametrize(
    ("words", "said"),
    [([], "piped text"), (["-"], "piped text"), (["Read:", "-"], "Read: piped text")],
)
def test_standard_input_takes_the_place_of_a_dash(
    words: list[str],
    said: str,
    model: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipe(monkeypatch, "piped text\n")
    assert main(["generate", "-m", model, *words, "--json", "--max-tokens", "2"]) == 0
    messages = [{"role": "user", "content": said}]
    assert document(capsys)["num_prompt_tokens"] == len(LLM.load(model).encode(messages))


def test_every_sampling_option_reaches_the_request(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["generate", "-m", model, "hello", "--json", "--max-tokens", "24", "--seed", "5"]
    options = {
        "temperature": 0.9,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.01,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
    }
    for name, value in options.items():
        argv += [f"--{name.replace('_', '-')}", str(value)]
    argv += ["--logit-bias", "65=4", "--logit-bias", "66=-2.5", "--ignore-eos", "--stop", "é"]
    assert main(argv) == 0
    expected = LLM.load(model).generate(
        [{"role": "user", "content": "hello"}],
        max_tokens=24,
        seed=5,
        logit_bias={65: 4.0, 66: -2.5},
        ignore_eos=True,
        stop=["é"],
        **options,  # type: ignore[arg-type]  # one mapping of floats stands for several types
    )
    assert document(capsys)["token_ids"] == list(expected.token_ids)


def test_mtp_changes_speed_never_text(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["generate", "-m", model, "hello", "--json", "--temperature", "0.3", "--seed", "1"]
    answers = []
    for mtp in ("off", "auto", "5"):
        assert main([*argv, "--mtp", mtp]) == 0
        answers.append(document(capsys))
    assert answers[0]["stats"]["num_drafted"] == 0
    assert answers[2]["stats"]["num_drafted"] > 0
    assert answers[0]["token_ids"] == answers[1]["token_ids"] == answers[2]["token_ids"]


def test_drafted_tokens_are_coloured_in_a_terminal(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ["generate", "-m", model, "hello", "-k", "4", *STUTTER, "--max-tokens", "24"]
    assert main(argv) == 0
    plain = capsys.readouterr().out
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert main(argv) == 0
    coloured = capsys.readouterr().out
    assert "\x1b" not in plain
    assert "\x1b[36m" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(argv) == 0
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["hi", "--temperature", "-1"], "temperature is -1.0."),
        (["hi", "--max-tokens", "0"], "max_tokens is 0."),
        (["hi", "--mtp", "fast"], "mtp is 'fast'."),
        (["hi", "-k", "99"], "mtp is 99."),
        (["hi", "--raw", "--system", "x"], "--system was given with --raw"),
        ([""], "The prompt is empty."),
    ],
)
def test_slips_are_answered_before_a_model_is_loaded(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "-m", "/no/such/model.gguf", *argv]) == 1
    assert said in capsys.readouterr().err


def test_bad_bias_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "hi", "--logit-bias", "word"]) == 2
    assert "42=-5" in capsys.readouterr().err


def test_missing_prompt_in_a_terminal_does_not_wait(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(monkeypatch, "")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert main(["generate"]) == 1
    assert "There is no prompt." in capsys.readouterr().err


def test_model_without_chat_template_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_talking_model(tmp_path / "base.gguf", chat_template=None)
    assert main(["generate", "-m", str(path), "hi"]) == 1
    assert "no chat template" in capsys.readouterr().err


def test_help_shows_every_field_with_its_docstring(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for flag in ("--repetition-penalty", "--logit-bias", "--ignore-eos", "--stop"):
        assert flag in shown
    assert "tokens that together reach this probability" in shown
    assert f"(default: {SamplingParams().top_p:g})" in shown
    assert "examples:" in shown


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8"])
def test_piped_bytes_are_read_as_utf_8_whatever_the_locale(
    encoding: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding=encoding, errors="surrogateescape")
    monkeypatch.setattr(sys, "stdin", stream)
    assert main(["generate", "-m", "/no/such/model.gguf"]) == 1
    assert "Standard input is not text" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for the child process")
def test_ctrl_c_works_while_a_chat_template_hangs(tmp_path: Path) -> None:
    """Guards against a model file that freezes the process: comparing these lists never ends."""
    template = (
        "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(40) %}"
        "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}"
    )
    path = write_talking_model(tmp_path / "hostile.gguf", chat_template=template)
    process = subprocess.Popen(
        [sys.executable, "-m", "headlong", "generate", "hi", "-m", str(path)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not children.read_text():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err


def test_thinking_is_told_and_switched(
    thinking_model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [
        "generate",
        "-m",
        str(thinking_model_path),
        "hi",
        "--json",
        "--max-tokens",
        "4",
        *STUTTER,
    ]
    off = ["--chat-template-kwargs", '{"enable_thinking": false}']
    cases = [([], ("cccc", "")), (["--no-think"], ("", "cccc")), (off, ("", "cccc"))]
    for options, parts in cases:
        assert main([*argv, *options]) == 0
        answer = document(capsys)
        assert (answer.get("reasoning", ""), answer["text"]) == parts
    assert main([*argv, "--chat-template-kwargs", "[1]"]) == 1
    assert "Give a JSON object" in capsys.readouterr().err
