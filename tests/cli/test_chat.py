import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headlong.cli.answer_view import AnswerView
from headlong.cli.main import main
from headlong.cli.sampling_arguments import setting_names
from headlong.llm import LLM
from talking_model import STUTTER, write_talking_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a tiny model."""
    return str(write_talking_model(tmp_path_factory.mktemp("chat") / "tiny.gguf"))


@pytest.fixture
def say(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[dict[str, Any], str]]:
    """Hold a conversation of piped lines; return its JSON document and what people see."""

    def hold(lines: list[str], *options: str) -> tuple[dict[str, Any], str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines) + "\n"))
        assert main(["chat", "--json", "--seed", "1", "--max-tokens", "6", *options]) == 0
        shown = capsys.readouterr()
        return json.loads(shown.out), shown.err

    return hold


Say = Callable[..., tuple[dict[str, Any], str]]


def test_default_model_remembers_the_turn_before(default_llm: LLM, say: Say) -> None:
    """The real thing, two turns of it."""
    session, _ = say(["My name is Ada.", "What is my name?"], "--max-tokens", "8")
    assert session["model"] == default_llm.model_path.name
    first, second = session["turns"]
    messages = [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": first["text"]},
        {"role": "user", "content": "What is my name?"},
    ]
    expected = default_llm.generate(messages, max_tokens=8, seed=1)
    assert second["text"] == expected.text
    assert second["num_prompt_tokens"] == expected.num_prompt_tokens


def test_answers_and_summaries_are_shown(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n\n   \nhell\n"))
    assert main(["chat", "-m", model, "--max-tokens", "6", "-k", "3", *STUTTER]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4  # two answers with a summary each; empty lines are no turns
    assert len(set(lines[0])) == 1
    assert lines[1].startswith("6 tokens (cut by the limit) · ")
    assert "n-grams" in lines[1]


def test_reset_forgets_all_but_the_system_message(model: str, say: Say) -> None:
    session, seen = say(["hi", "/reset", "hi"], "-m", model, "--system", "Be brief.")
    first, second = session["turns"]
    assert second["num_prompt_tokens"] == first["num_prompt_tokens"]
    assert second["token_ids"] == first["token_ids"]
    assert "A new conversation." in seen


def test_mtp_and_temperature_change_between_turns(model: str, say: Say) -> None:
    lines = ["hi", "/reset", "/mtp off", "hi", "/reset", "/set temperature 2", "hi"]
    session, seen = say(lines, "-m", model, "-k", "4", *STUTTER[:1], "66=9")
    drafted, plain, wild = session["turns"]
    assert [turn["mtp"] for turn in session["turns"]] == [4, "off", "off"]
    assert plain["stats"]["num_drafted"] == 0
    assert plain["token_ids"] == drafted["token_ids"]
    assert wild["token_ids"] != plain["token_ids"]
    assert "MTP is off." in seen
    assert "temperature  2\n" in seen


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("/mtp 99", "mtp is 99."),
        ("/mtp", "MTP is auto."),
        ("/set temperature hot", "temperature is 'hot'."),
        ("/set temperature -1", "temperature is -1.0."),
        ("/set ignore_eos maybe", "Give on or off, or default."),
        ("/set logit_bias 7", "Give a token id and an amount, like 42=-5"),
        ("/set temprature 1", "Did you mean temperature?"),
        ("/set temprature default", "Did you mean temperature?"),
        ("/frobnicate", "There is no command '/frobnicate'."),
        ("/temperature 0.7", "Did you mean /set temperature 0.7?"),
        ("/exit", "Did you mean /quit?"),
        ("/sav x", "Did you mean /save?"),
        ("/undo", "There is nothing to undo."),
        ("/retry", "There is no message to answer again."),
        ("/copy", "There is no answer to copy."),
        ("/load nothing", "No conversation is called 'nothing'."),
        ("/save ../x", "'../x' cannot be the name of a conversation."),
    ],
)
def test_slips_do_not_end_the_conversation(model: str, command: str, said: str, say: Say) -> None:
    session, seen = say([command, "hi"], "-m", model)
    assert said in seen
    assert len(session["turns"]) == 1


def test_quit_leaves_at_once(model: str, say: Say) -> None:
    session, _ = say(["/quit", "hi"], "-m", model)
    assert session["turns"] == []


def test_help_and_stats_are_shown(model: str, say: Say) -> None:
    session, seen = say(["/help", "/stats", "hi", "/stats"], "-m", model, "-k", "3", *STUTTER)
    assert "/set [NAME [X]]" in seen
    assert "0 answers" in seen
    counted = session["stats"]["by_drafter"]["ngram"]
    assert counted["num_drafted"] > 0
    counts = f"{counted['num_accepted']} of {counted['num_drafted']}"
    told = f"n-grams: {counts} drafted tokens were accepted"
    assert told in seen


def test_line_with_a_leading_space_is_no_command(model: str, say: Say) -> None:
    session, _ = say([" /reset is a word"], "-m", model)
    assert session["turns"][0]["prompt"] == "/reset is a word"


def test_context_overflow_loses_nothing(tmp_path: Path, say: Say) -> None:
    """A message that does not fit is refused with both numbers; the talk goes on without it."""
    path = write_talking_model(tmp_path / "short.gguf", context_length=80)
    session, seen = say(["hi", "x" * 100, "ho"], "-m", str(path), "--max-tokens", "2")
    first, second = session["turns"]
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": first["text"]},
        {"role": "user", "content": "x" * 100},
    ]
    llm = LLM.load(path)
    assert f"has {len(llm.encode(messages))} tokens; the model's context holds 80." in seen
    assert "/reset" in seen
    messages[2] = {"role": "user", "content": "ho"}
    assert second["num_prompt_tokens"] == len(llm.encode(messages))


def test_answer_that_fills_the_context_says_so(tmp_path: Path, say: Say) -> None:
    path = write_talking_model(tmp_path / "short.gguf", context_length=40)
    _, seen = say(["hi"], "-m", str(path), "--max-tokens", "60", "--ignore-eos")
    assert "The context of 40 tokens is full; /reset starts again." in seen


def interrupt_at(monkeypatch: pytest.MonkeyPatch, num_chunks: int) -> None:
    """Press Ctrl-C once, when this many chunks have been shown."""
    shown: list[str] = []
    show = AnswerView.show

    def show_or_stop(self: AnswerView, chunk: Any) -> None:
        show(self, chunk)
        shown.append(chunk.text)
        if len(shown) == num_chunks:
            raise KeyboardInterrupt

    monkeypatch.setattr(AnswerView, "show", show_or_stop)


def test_ctrl_c_stops_the_answer_only(
    model: str, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_at(monkeypatch, num_chunks=3)
    session, seen = say(["hi", "ho"], "-m", model, *STUTTER)
    stopped, second = session["turns"]
    assert stopped["finish_reason"] == "cancelled"
    assert len(stopped["token_ids"]) == 3
    assert "3 tokens (stopped)" in seen
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": stopped["text"]},
        {"role": "user", "content": "ho"},
    ]
    assert second["num_prompt_tokens"] == len(LLM.load(model).encode(messages))
    assert second["finish_reason"] == "length"


def test_empty_answer_leaves_no_turn_behind(
    model: str, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An assistant message without text would teach the model to say nothing."""
    llm = LLM.load(model)
    end = llm.tokenizer.encode("<|im_end|>", add_special=False)[0]
    session, seen = say(["hi", "hi"], "-m", model, "--logit-bias", f"{end}=100")
    assert "not kept" in seen
    first, second = session["turns"]
    assert first["text"] == ""
    assert second["num_prompt_tokens"] == first["num_prompt_tokens"]


def test_line_that_is_not_text_does_not_end_the_conversation(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(b"hi\ncaf\xe9\nho\n"), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", stream)
    assert main(["chat", "--json", "-m", model, "--max-tokens", "2"]) == 0
    shown = capsys.readouterr()
    assert [turn["prompt"] for turn in json.loads(shown.out)["turns"]] == ["hi", "ho"]
    assert "Standard input is not text" in shown.err


def test_refused_turn_does_not_end_the_conversation(tmp_path: Path, say: Say) -> None:
    template = (
        "{% for m in messages %}{% if m.content == 'bad' %}{{ raise_exception('Not this.') }}"
        "{% endif %}{{ m.content }}{% endfor %}"
    )
    path = write_talking_model(tmp_path / "picky.gguf", chat_template=template)
    session, seen = say(["hi", "bad", "ho"], "-m", str(path))
    assert "Not this." in seen
    assert [turn["prompt"] for turn in session["turns"]] == ["hi", "ho"]


def test_undo_takes_the_last_exchange_back(model: str, say: Say) -> None:
    session, seen = say(["hi", "ho", "/undo", "ho"], "-m", model)
    _, second, third = session["turns"]
    assert "Forgotten: ho" in seen
    assert third["num_prompt_tokens"] == second["num_prompt_tokens"]
    assert third["token_ids"] == second["token_ids"]


def test_retry_answers_the_same_message_again(model: str, say: Say) -> None:
    lines = ["hi", "/retry", "/set temperature 2", "/set seed default", "/retry", "ho"]
    session, seen = say(lines, "-m", model, *STUTTER[:1], "66=9")
    first, same, other, last = session["turns"]
    assert first["prompt"] == same["prompt"] == other["prompt"] == "hi"
    assert same["token_ids"] == first["token_ids"]
    assert "The same: it varies" in seen
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": other["text"]},
        {"role": "user", "content": "ho"},
    ]
    assert last["num_prompt_tokens"] == len(LLM.load(model).encode(messages))


def test_retry_that_says_nothing_keeps_the_old_answer(model: str, say: Say) -> None:
    end = LLM.load(model).tokenizer.encode("<|im_end|>", add_special=False)[0]
    lines = ["hi", f"/set logit_bias {end}=100", "/retry", "/set logit_bias default", "ho"]
    session, _ = say(lines, "-m", model)
    first, empty, last = session["turns"]
    assert empty["text"] == ""
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": first["text"]},
        {"role": "user", "content": "ho"},
    ]
    assert last["num_prompt_tokens"] == len(LLM.load(model).encode(messages))


def test_system_message_changes_in_the_middle(model: str, say: Say) -> None:
    session, seen = say(["/system Be brief.", "hi", "/system none", "/reset", "hi"], "-m", model)
    with_system, without = session["turns"]
    assert with_system["num_prompt_tokens"] > without["num_prompt_tokens"]
    assert "System message: Be brief." in seen


def test_message_of_many_lines_is_one_turn(model: str, say: Say) -> None:
    lines = ['"""def f():', "    pass", '"""', "one \\", "two", '/system """a', 'b"""', '"""x"""']
    session, seen = say(lines, "-m", model)
    prompts = [turn["prompt"] for turn in session["turns"]]
    assert prompts == ["def f():\n    pass", "one \ntwo", "x"]
    assert "System message: a\nb" in seen


def test_quotes_that_are_never_closed_end_with_the_input(model: str, say: Say) -> None:
    session, _ = say(['"""one', "two"], "-m", model)
    assert [turn["prompt"] for turn in session["turns"]] == ["one\ntwo"]


def test_saved_conversation_goes_on_in_another_run(
    model: str, say: Say, state_folder: Path
) -> None:
    said, seen = say(["/save fox", "hi"], "-m", model, "--system", "Be brief.")
    assert str(state_folder / "sessions/fox.json") in seen
    session, seen = say(["ho"], "--resume", "fox")  # with the model it was held with
    assert "Going on with 'fox': 1 answer so far." in seen
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": said["turns"][0]["text"]},
        {"role": "user", "content": "ho"},
    ]
    assert session["turns"][0]["num_prompt_tokens"] == len(LLM.load(model).encode(messages))
    _, seen = say(["/load", "/load fox"], "-m", model)
    assert "Kept are: fox." in seen
    assert "2 answers so far" in seen


def test_piped_conversation_is_kept_only_when_asked(
    model: str, say: Say, state_folder: Path
) -> None:
    say(["hi"], "-m", model)
    assert not (state_folder / "sessions").exists()


def test_settings_are_listed_as_they_are(model: str, say: Say) -> None:
    lines = ["/set", "/set stop END\\n", "/set logit_bias 7=1.5", "/set ignore_eos on", "/set"]
    _, seen = say([*lines, "/set stop"], "-m", model)
    before, after = (dict(re.findall(r"^  (\w+) +(.*)$", part, re.M)) for part in _split(seen))
    assert set(before) == set(setting_names())
    assert (before["stop"], before["ignore_eos"], before["temperature"]) == ("none", "off", "0")
    assert (before["seed"], before["max_tokens"]) == ("1", "6")
    assert (after["stop"], after["logit_bias"]) == (r"'END\n'", "7=1.5")
    assert after["ignore_eos"] == "on"


def _split(seen: str) -> tuple[str, str]:
    """Return what was shown before and after the first change."""
    lines = seen.splitlines()
    return "\n".join(lines[: len(setting_names())]), "\n".join(lines[len(setting_names()) :])


def test_what_is_taken_back_is_gone_from_the_disk_too(
    model: str, say: Say, state_folder: Path
) -> None:
    say(["/save fox", "hi", "/undo"], "-m", model)
    _, seen = say(["/load fox"], "-m", model)
    assert "0 answers so far" in seen
