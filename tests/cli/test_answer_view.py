import io
from dataclasses import replace

import pytest
from rich.console import Console

from headlong.cli.answer_view import (
    AnswerView,
    can_colour,
    describe_completion,
    print_summary,
    summarise,
)
from headlong.decode.stats import DecodeStats, Timings
from headlong.engine.request import FinishReason
from headlong.generation import Chunk, Completion


def terminal(*, has_colours: bool = True, no_color: bool = False) -> Console:
    """A console that believes it is a terminal."""
    return Console(
        file=io.StringIO(),
        force_terminal=True,
        color_system="standard" if has_colours else None,
        no_color=no_color,
    )


def written(console: Console) -> str:
    """Return what was written to a console's file."""
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def chunk(text: str, source: str = "backbone") -> Chunk:
    """Make a chunk of one token."""
    return Chunk(text, (0,), source != "backbone", source, 0)


def completion() -> Completion:
    """An answer of seven tokens in three rounds."""
    stats = DecodeStats()
    stats.observe_round(["head", "head"], 2)
    stats.observe_round(["ngram", "ngram", "head"], 1)
    stats.observe_round([], 0)
    timings = Timings(prefill_s=0.25, prefill_head_s=0.004, decode_s=0.5, num_tokens=6)
    return Completion(
        text="hello",
        token_ids=(1,) * 7,
        finish_reason=FinishReason.STOP,
        logprobs=None,
        num_prompt_tokens=31,
        seed=42,
        off_reason=None,
        stats=stats,
        timings=timings,
    )


def test_each_drafter_has_its_own_colour() -> None:
    console = terminal()
    view = AnswerView(console)
    for source in ("backbone", "head", "ngram", "draft-model"):
        view.show(chunk("x", source))
    assert written(console) == "x\x1b[32mx\x1b[0m\x1b[36mx\x1b[0m\x1b[35mx\x1b[0m"


@pytest.mark.parametrize("console", [terminal(no_color=True), terminal(has_colours=False)])
def test_colourless_terminals_get_plain_text(console: Console) -> None:
    assert not can_colour(console)
    AnswerView(console).show(chunk("x", "head"))
    assert written(console) == "x"


def test_terminal_does_not_obey_the_model() -> None:
    """A model may write escape sequences; shown raw, they could retitle or fake the terminal."""
    console = terminal()
    AnswerView(console).show(chunk("a\x1b]0;owned\x07\tb\nc\x9b2J"))
    assert written(console) == "a�]0;owned�\tb\nc�2J"
    pipe = Console(file=io.StringIO(), force_terminal=False)
    AnswerView(pipe).show(chunk("a\x1b[0m"))
    assert written(pipe) == "a\x1b[0m"  # a file gets what the model wrote


def test_reasoning_is_dimmed_before_the_answer() -> None:
    thought, said = replace(chunk("", "head"), reasoning="hm"), chunk("x", "head")
    console = terminal()
    view = AnswerView(console)
    for one in (thought, thought, said):
        view.show(one)
    assert written(console) == "\x1b[2mhm\x1b[0m" * 2 + "\n\n\x1b[32mx\x1b[0m"


def test_reasoning_stays_out_of_pipes() -> None:
    pipe = Console(file=io.StringIO(), force_terminal=False)
    for one in (replace(chunk(""), reasoning="hm"), chunk("x")):
        AnswerView(pipe).show(one)
    assert written(pipe) == "x"


def test_answer_that_is_only_reasoning_says_so() -> None:
    cut = replace(completion(), text="", reasoning="hm", finish_reason=FinishReason.LENGTH)
    assert "still thinking" in summarise(cut).plain
    assert describe_completion(cut)["reasoning"] == "hm"


def test_last_line_is_ended_once() -> None:
    for text, shown in (("a", "a\n"), ("a\n", "a\n"), ("", "")):
        console = terminal()
        view = AnswerView(console)
        view.show(chunk(text))
        view.finish()
        assert written(console) == shown


def test_summary_tells_speed_drafts_and_prompt() -> None:
    assert summarise(completion()).plain == (
        "7 tokens · 12.0 tokens/s · acceptance length 2.00 over 3 rounds · head 2/3 · "
        "n-grams 1/2 · prompt 31 in 250 ms + head 4 ms · seed 42"
    )


def test_summary_tells_how_an_answer_was_cut() -> None:
    cut = replace(completion(), finish_reason=FinishReason.LENGTH)
    assert summarise(cut).plain.startswith("7 tokens (cut by the limit) · ")
    stopped = replace(completion(), finish_reason=FinishReason.CANCELLED)
    assert summarise(stopped).plain.startswith("7 tokens (stopped) · ")


def test_broken_drafter_is_told() -> None:
    console = terminal(has_colours=False)
    print_summary(completion(), console)
    assert "Drafting stopped" not in written(console)
    print_summary(replace(completion(), off_reason="The head wrote NaN."), console)
    assert "the text is unharmed: The head wrote NaN." in written(console)


def test_unasked_logprobs_are_left_out() -> None:
    assert "logprobs" not in describe_completion(completion())
