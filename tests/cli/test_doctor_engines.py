import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_faults import Fault
from headlong.cli.main import main
from headlong.fleet import probe
from http_engine import HttpEngine, run_engine
from scripted_model import ScriptedModel
from scripted_sides import TOKENIZER
from talking_model import write_talking_model

MODEL = ScriptedModel(tuple(range(256)), min(TOKENIZER.eos_ids), TOKENIZER.vocab_size)


@pytest.fixture(autouse=True)
def _few_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "PROMPTS", dict(list(probe.PROMPTS.items())[:3]))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a tiny model in whose tokens the engines speak."""
    return str(write_talking_model(tmp_path_factory.mktemp("model") / "tiny.gguf"))


@pytest.fixture(scope="module")
def plain() -> Iterator[HttpEngine]:
    with run_engine(model=MODEL) as engine:
        yield engine


def test_a_lying_engine_is_found_out_and_what_follows_is_said(
    model: str, plain: HttpEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    with run_engine(model=MODEL, num_spec_tokens=3, choose_fault=lambda _: Fault("uniform")) as bad:
        urls = ("--speculative-url", f"{bad.url}/v1", "--engine-url", plain.url)
        assert main(["doctor", model, *urls, "--json"]) == 1
    shown = capsys.readouterr()
    told = json.loads(shown.out)
    assert (told["trusted"], told["num_faults"]) == (False, 1)
    assert "✗ sampled text" in shown.err
    assert "sends it greedy requests only" in shown.err
    assert "✓ greedy text" in shown.err
    assert "not checked" in shown.err  # the scripted engines know no grammars
    assert "failed the probe" not in shown.err  # the log says it another time, to others


def test_an_honest_engine_ends_with_zero_and_with_one_where_all_must_be_checked(
    model: str, plain: HttpEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    with run_engine(model=MODEL, num_spec_tokens=3) as good:
        asked = ["doctor", model, "--speculative-url", good.url, "--engine-url", plain.url]
        assert main(asked) == 0
        assert "No fault found" in capsys.readouterr().out
        assert main([*asked, "--strict"]) == 1


def test_an_engine_that_is_not_there_is_an_error(
    model: str, plain: HttpEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = "http://127.0.0.1:9"
    assert main(["doctor", model, "--speculative-url", nowhere, "--engine-url", plain.url]) != 0
    assert "127.0.0.1:9 does not answer" in capsys.readouterr().err


def test_a_plain_engine_alone_is_nothing_to_examine(
    model: str, plain: HttpEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", model, "--engine-url", plain.url]) != 0
    assert "--speculative-url" in capsys.readouterr().err


def test_an_engine_is_not_compared_with_itself(
    model: str, plain: HttpEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    urls = ("--speculative-url", plain.url, "--engine-url", f"{plain.url}/v1")
    assert main(["doctor", model, *urls]) != 0
    assert "Both engines are the one at" in capsys.readouterr().err


def test_a_kind_of_engine_alone_is_nothing_to_examine(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model in this process was examined, and the kind ignored."""
    assert main(["doctor", model, "--engine", "llama.cpp"]) != 0
    assert "--speculative-url" in capsys.readouterr().err


def test_a_key_file_that_is_not_there_is_an_error(
    model: str, plain: HttpEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "none")
    assert (
        main(["doctor", model, "--speculative-url", plain.url, "--engine-key-file", missing]) != 0
    )
    assert "cannot be read" in capsys.readouterr().err
