"""How an answer looks while it is written, and the one line after it.

In:  the chunks of a generation, or the finished completion.
Out: text on a console, coloured by drafter where the console can; a one-line summary whose
     drafter names carry the same colours and so explain them; the completion as JSON.
"""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.style import Style
from rich.text import Text

from headlong.cli.output import printable
from headlong.errors import HeadlongError

if TYPE_CHECKING:
    from headlong.generation import Chunk, Completion, Generation

DRAFTER_STYLES = {"head": "green", "ngram": "cyan", "draft-model": "magenta"}
"""Colour of a token by the drafter that had proposed it; the backbone's own stay uncoloured."""

_DRAFTER_NAMES = {"ngram": "n-grams", "draft-model": "draft model"}


class AnswerView:
    """Writes chunks to a console as they come."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._has_colour = can_colour(console)
        self._at_line_start = True
        self._has_reasoning = False

    def show(self, chunk: "Chunk") -> None:
        """Write one chunk at once; reasoning is dimmed, and shown on terminals only."""
        if chunk.reasoning and self._console.is_terminal:
            self._write(chunk.reasoning, "dim")
            self._has_reasoning = True
        if not chunk.text:
            return
        if self._has_reasoning:
            self._write("\n\n", None)
            self._has_reasoning = False
        self._write(chunk.text, DRAFTER_STYLES.get(chunk.source))

    def _write(self, text: str, style: str | None) -> None:
        """Write straight to the file: a console would expand tabs and wrap the text's own lines."""
        self._at_line_start = text.endswith("\n")
        text = printable(text) if self._console.is_terminal else text
        is_styled = style is not None and self._has_colour
        self._console.file.write(Style.parse(style or "").render(text) if is_styled else text)
        self._console.file.flush()

    def finish(self) -> None:
        """End the last line."""
        if not self._at_line_start:
            self._console.file.write("\n")
            self._console.file.flush()
        self._at_line_start = True


def can_colour(console: Console) -> bool:
    """Tell whether colours are shown: a terminal that has them, and no NO_COLOR."""
    return console.is_terminal and console.color_system is not None and not console.no_color


def stream_answer(generation: "Generation", console: Console) -> "Completion":
    """Show an answer while it is written, and return it whole."""
    view = AnswerView(console)
    try:
        for chunk in generation:
            view.show(chunk)
    except (KeyboardInterrupt, HeadlongError):
        # Whatever is said next, it begins on a line of its own, after the terminal's ^C.
        console.file.write("\n")
        raise
    view.finish()
    return generation.complete()


def print_summary(completion: "Completion", console: Console) -> None:
    """Print the line after an answer, and why drafting gave up if it did."""
    console.print(summarise(completion), style="dim", soft_wrap=True)
    if completion.off_reason is not None:
        note = f"Drafting stopped on the way, the text is unharmed: {completion.off_reason}"
        console.print(note, style="yellow", soft_wrap=True)


def summarise(completion: "Completion") -> Text:
    """Say in one line what an answer took."""
    stats, timings = completion.stats, completion.timings
    num_tokens = len(completion.token_ids)
    facts = [Text(f"{num_tokens} token{'' if num_tokens == 1 else 's'}{_ending(completion)}")]
    if timings.decode_s > 0:
        facts.append(Text(f"{timings.tokens_per_second:.1f} tokens/s"))
    if stats.rounds:
        facts.append(
            Text(f"acceptance length {stats.acceptance_length:.2f} over {stats.rounds} rounds")
        )
    for name, count in stats.by_drafter.items():
        shares = f" {count.num_accepted}/{count.num_drafted}"
        facts.append(Text.assemble(drafter_label(name), shares))
    if stats.rounds and not stats.num_drafted:
        facts.append(Text("no drafts"))
    if timings.prefill_s > 0:
        facts.append(Text(_prefill(completion)))
    facts.append(Text(f"seed {completion.seed}"))
    return Text(" · ", style="dim").join(facts)


def drafter_label(name: str) -> Text:
    """Return a drafter's name for people, in its colour."""
    return Text(_DRAFTER_NAMES.get(name, name), style=DRAFTER_STYLES.get(name, ""))


def describe_completion(completion: "Completion") -> dict[str, Any]:
    """Return an answer and what it took, for JSON."""
    document: dict[str, Any] = {
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "finish_reason": str(completion.finish_reason),
        "seed": completion.seed,
        "num_prompt_tokens": completion.num_prompt_tokens,
        "off_reason": completion.off_reason,
        "stats": completion.stats.to_dict(),
        "timings": completion.timings.to_dict(),
    }
    if completion.reasoning:
        document["reasoning"] = completion.reasoning
    if completion.logprobs is not None:
        document["logprobs"] = [asdict(one) for one in completion.logprobs]
    return document


def _ending(completion: "Completion") -> str:
    """Say how the answer ended where the text does not tell."""
    if completion.reasoning and not completion.text:
        return " (still thinking; allow it more, or none)"
    return {"length": " (cut by the limit)", "cancelled": " (stopped)"}.get(
        str(completion.finish_reason), ""
    )


def _prefill(completion: "Completion") -> str:
    timings = completion.timings
    text = f"prompt {completion.num_prompt_tokens} in {timings.prefill_s * 1e3:.0f} ms"
    if timings.prefill_head_s >= 0.0005:
        text += f" + head {timings.prefill_head_s * 1e3:.0f} ms"
    return text
