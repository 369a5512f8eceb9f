"""A conversation with one model: messages, answers, what they took.

In:  messages of the user. Out: answers on a console; everything that was said.
Knows nothing of commands, of terminals' input, or of files.
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
    """Messages back and forth.

    A message that cannot be answered is not kept, so that nothing said before it is lost.
    """

    def __init__(
        self, llm: "LLM", console: Console, options: "GenerateOptions", system: str | None
    ) -> None:
        self.options = options
        """What the next answer is generated with; commands change it."""
        self.system = system
        """The system message; None if there is none."""
        self.messages: list[dict[str, str]] = []
        """What user and model said, in turn."""
        self._llm = llm
        self._console = console
        self._turns: list[dict[str, Any]] = []
        self._stats = DecodeStats()
        self._timings = Timings()

    @property
    def last_answer(self) -> str | None:
        """What the model said last."""
        return self.messages[-1]["content"] if self.messages else None

    def reset(self) -> None:
        """Forget all messages but the system message; the statistics go on."""
        self.messages = []

    def undo(self) -> str | None:
        """Forget the last message and its answer; return the message, None if there was none."""
        if not self.messages:
            return None
        *self.messages, asked, _ = self.messages
        return asked["content"]

    def retry(self) -> bool:
        """Answer the last message again; return whether there was one.

        The old answer stays unless there is a new one.
        """
        before = self.messages
        message = self.undo()
        if message is None:
            return False
        try:
            self.answer(message)
        finally:
            if len(self.messages) < len(before):
                self.messages = before
        return True

    def answer(self, message: str) -> None:
        """Answer one message on the console, or say why that cannot be."""
        opening = [] if self.system is None else [{"role": "system", "content": self.system}]
        asked = [*self.messages, {"role": "user", "content": message}]
        prompt_ids = self._llm.encode([*opening, *asked])
        context = self._llm.backbone.config.context_length
        if len(prompt_ids) >= context:
            print_error(_overflow(len(prompt_ids), context))
            return
        completion = self._stream([*opening, *asked])
        print_summary(completion, self._console)
        self._record(message, completion)
        if not completion.text:
            self._note("Nothing was said, so your message is not kept either.")
            return
        said = {"role": "assistant", "content": completion.text}
        if completion.reasoning:  # kept or dropped by the model's template
            said["reasoning_content"] = completion.reasoning
        self.messages = [*asked, said]
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
        """Return every answer, those taken back included, and the totals, for JSON."""
        return {
            "turns": self._turns,
            "stats": self._stats.to_dict(),
            "timings": self._timings.to_dict(),
        }

    def _stream(self, messages: list[dict[str, str]]) -> "Completion":
        """Show the answer; Ctrl-C ends it and keeps what was written."""
        generation = self._llm.stream(messages, **self.options)
        try:
            return stream_answer(generation, self._console)
        except KeyboardInterrupt:
            generation.close()
            return generation.complete()

    def _record(self, message: str, completion: "Completion") -> None:
        asked = {"prompt": message, "mtp": self.options.get("mtp", "auto")}
        self._turns.append(asked | describe_completion(completion))
        self._stats.merge(completion.stats)
        for field in fields(Timings):
            total = getattr(self._timings, field.name) + getattr(completion.timings, field.name)
            setattr(self._timings, field.name, total)

    def _note(self, text: str) -> None:
        self._console.print(text, style="yellow", soft_wrap=not self._console.is_terminal)


def _overflow(num_tokens: int, context: int) -> RequestError:
    return RequestError(
        f"With this message the conversation has {num_tokens} tokens; the model's context holds "
        f"{context}.",
        "Shorten it, or start again with /reset. The message was not added; the conversation "
        "before it is unchanged.",
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
