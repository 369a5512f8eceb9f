"""A conversation: messages so far, and the answers with what they took.

In:  one message of the user at a time.
Out: the model's answer on a console; the session as JSON.
Knows nothing of commands or of terminals' input. A message that cannot be answered is not kept, so
that nothing said before it is lost.
"""

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from headlong.cli.answer_view import (
    describe_completion,
    drafter_label,
    print_summary,
    stream_answer,
)
from headlong.cli.output import print_error
from headlong.decode.stats import DecodeStats, Timings
from headlong.errors import RequestError

if TYPE_CHECKING:
    from headlong.generation import Completion
    from headlong.llm import LLM, GenerateOptions


class Conversation:
    """Messages back and forth with one model."""

    def __init__(
        self, llm: "LLM", console: Console, options: "GenerateOptions", system: str | None
    ) -> None:
        self.options = options
        """What the next answer is generated with; commands change it."""
        self._llm = llm
        self._console = console
        self._opening = [] if system is None else [{"role": "system", "content": system}]
        self._messages = list(self._opening)
        self._turns: list[dict[str, Any]] = []
        self._stats = DecodeStats()
        self._timings = Timings()

    def reset(self) -> None:
        """Forget all messages but the system message; the statistics go on."""
        self._messages = list(self._opening)

    def answer(self, message: str) -> None:
        """Answer one message on the console, or say why that cannot be."""
        messages = [*self._messages, {"role": "user", "content": message}]
        prompt_ids = self._llm.encode(messages)
        context = self._llm.backbone.config.context_length
        if len(prompt_ids) >= context:
            print_error(_overflow(len(prompt_ids), context))
            return
        completion = self._stream(prompt_ids)
        print_summary(completion, self._console)
        self._book(message, completion)
        if not completion.text:
            self._note("Nothing was said, so your message is not kept either.")
            return
        self._messages = [*messages, {"role": "assistant", "content": completion.text}]
        if len(prompt_ids) + len(completion.token_ids) >= context:
            self._note(f"The context of {context} tokens is full; /reset starts again.")

    def describe_stats(self) -> Text:
        """Say what all answers so far drafted and gained."""
        stats, timings = self._stats, self._timings
        lines = [
            Text(
                f"{_count(len(self._turns), 'answer')} · {timings.tokens_per_second:.1f} tokens/s "
                f"· {_count(stats.rounds, 'round')} · "
                f"acceptance length {stats.acceptance_length:.2f}"
            )
        ]
        for name, count in stats.by_drafter.items():
            share = count.num_accepted / count.num_drafted
            facts = f": {count.num_accepted} of {count.num_drafted} drafted tokens were accepted"
            lines.append(Text.assemble(drafter_label(name), f"{facts} ({share:.0%})"))
        if stats.num_drafted:
            shares = " ".join(f"{share:.0%}" for share in stats.acceptance_at_depth)
            lines.append(Text(f"rounds in which depth 1, 2, … was accepted: {shares}"))
        return Text("\n").join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return every turn and the totals, for JSON."""
        return {
            "turns": self._turns,
            "stats": self._stats.to_dict(),
            "timings": self._timings.to_dict(),
        }

    def _stream(self, prompt_ids: tuple[int, ...]) -> "Completion":
        """Show the answer; Ctrl-C ends it and keeps what was written."""
        generation = self._llm.stream(prompt_ids, **self.options)
        try:
            return stream_answer(generation, self._console)
        except KeyboardInterrupt:
            generation.close()
            return generation.complete()

    def _book(self, message: str, completion: "Completion") -> None:
        asked = {"prompt": message, "mtp": self.options.get("mtp", "auto")}
        self._turns.append(asked | describe_completion(completion))
        self._stats.merge(completion.stats)
        for field in fields(Timings):
            total = getattr(self._timings, field.name) + getattr(completion.timings, field.name)
            setattr(self._timings, field.name, total)

    def _note(self, text: str) -> None:
        self._console.print(text, style="yellow", soft_wrap=True)


def _overflow(num_tokens: int, context: int) -> RequestError:
    return RequestError(
        f"With this message the conversation has {num_tokens} tokens; the model's context holds "
        f"{context}.",
        "Shorten it, or start again with /reset. The message was not added; the conversation "
        "before it is unchanged.",
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
