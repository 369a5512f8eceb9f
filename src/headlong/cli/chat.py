"""`headlong chat`: talk with a model.

In:  lines from a terminal, or piped in, each one a turn or a command.
Out: answers as they are written, one line of numbers after each; with --json one document at the
     end. Ctrl-C stops an answer, never the conversation.
"""

import argparse
import contextlib
import importlib
import sys
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from headlong.cli.answer_view import (
    can_colour,
    describe_completion,
    drafter_label,
    print_summary,
    stream_answer,
)
from headlong.cli.model_arguments import add_model_arguments, describe_setup, load_llm
from headlong.cli.output import add_json_argument, make_console, print_error, read_stdin, write_json
from headlong.cli.sampling_arguments import (
    add_mtp_argument,
    add_sampling_arguments,
    add_thinking_arguments,
    check_options,
    parse_mtp,
    read_generate_options,
)
from headlong.decode.stats import DecodeStats, Timings
from headlong.errors import HeadlongError, RequestError

if TYPE_CHECKING:
    from headlong.generation import Completion
    from headlong.llm import LLM, GenerateOptions

_COMMANDS = """\
  /help               this list
  /reset              forget the conversation, keep the settings
  /mtp auto|off|K     how the next answers draft; their text stays the same
  /temperature X      0 is always the likeliest word, 0.7 is livelier
  /stats              what all answers so far drafted and gained
  /quit               leave (so does Ctrl-D)

Ctrl-C stops the answer that is being written. A line that begins with a space is no command."""

_PROMPT = "> "
# \\001 and \\002 keep readline from counting colour codes as letters.
_COLOURED_PROMPT = "\001\033[1;34m\002> \001\033[0m\002"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the verb's options."""
    parser.usage = "headlong chat [options]"
    parser.epilog = (parser.epilog or "").replace("{commands}", _COMMANDS)
    parser.add_argument("--system", metavar="TEXT", help="begin with this system message")
    add_mtp_argument(parser)
    add_thinking_arguments(parser)
    add_json_argument(parser)
    add_model_arguments(parser)
    add_sampling_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Talk until the user leaves."""
    options = read_generate_options(args)
    llm = load_llm(args)
    console = make_console(stderr=args.json)
    conversation = Conversation(llm, console, options, args.system)
    setup = describe_setup(llm)
    if sys.stdin.isatty():
        _welcome(console, setup)
    _Session(conversation, console).run()
    if args.json:
        write_json({**setup, **conversation.to_dict()})
    return 0


class Conversation:
    """Messages back and forth with one model; knows nothing of commands or of terminals' input.

    A message that cannot be answered is not kept, so that nothing said before it is lost.
    """

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
        completion = self._stream(messages)
        print_summary(completion, self._console)
        self._book(message, completion)
        if not completion.text:
            self._note("Nothing was said, so your message is not kept either.")
            return
        said = {"role": "assistant", "content": completion.text}
        if completion.reasoning:  # kept or dropped by the model's template
            said["reasoning_content"] = completion.reasoning
        self._messages = [*messages, said]
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

    def _stream(self, messages: list[dict[str, str]]) -> "Completion":
        """Show the answer; Ctrl-C ends it and keeps what was written."""
        generation = self._llm.stream(messages, **self.options)
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


class _Session:
    """Reads lines and carries them out until there are no more."""

    def __init__(self, conversation: Conversation, console: Console) -> None:
        self._conversation = conversation
        self._console = console
        self._is_typed = sys.stdin.isatty()
        if self._is_typed:
            # Line editing and history of `input`; some systems come without it.
            with contextlib.suppress(ImportError):
                importlib.import_module("readline")

    def run(self) -> None:
        """Take turns until the user leaves."""
        is_open = True
        while is_open:
            # What one line or one answer fails at is said; the conversation outlives it.
            try:
                is_open = self._take_turn()
            except HeadlongError as error:
                print_error(error)

    def _take_turn(self) -> bool:
        """Read a line and do what it asks; return whether to go on."""
        line = self._read_line()
        if line is None:
            return False
        if line.startswith("/"):
            command, _, value = line.partition(" ")
            if command == "/quit":
                return False
            self._change(command, value.strip())
        elif line.strip():
            self._conversation.answer(line.strip())
        return True

    def _read_line(self) -> str | None:
        """Return the next line, None at the end."""
        if not self._is_typed:
            return _read_plain_line()
        self._console.print()
        try:
            return self._ask()
        except KeyboardInterrupt:
            self._say("\nCtrl-D or /quit leaves.")
            return ""

    def _ask(self) -> str | None:
        """Let the user type a line."""
        if not sys.stdout.isatty():
            # `input` would write its prompt into the pipe.
            sys.stderr.write(_PROMPT)
            sys.stderr.flush()
            return _read_plain_line()
        try:
            return input(_COLOURED_PROMPT if can_colour(self._console) else _PROMPT)
        except EOFError:
            self._console.print()
            return None

    def _change(self, command: str, value: str) -> None:
        """Carry out a command."""
        conversation = self._conversation
        if command == "/help":
            self._console.print(_COMMANDS)
        elif command == "/reset":
            conversation.reset()
            self._say("A new conversation.")
        elif command == "/stats":
            self._console.print(conversation.describe_stats())
        elif command == "/mtp":
            conversation.options["mtp"] = parse_mtp(value)
            self._say(f"MTP is {value}.")
        elif command == "/temperature":
            conversation.options["temperature"] = _parse_temperature(value)
            self._say(f"Temperature is {value}.")
        else:
            raise RequestError(f"There is no command {command!r}.", "/help lists them.")

    def _say(self, text: str) -> None:
        self._console.print(text, style="dim")


def _read_plain_line() -> str | None:
    line = read_stdin(whole=False)
    return line.rstrip("\n") if line else None


def _parse_temperature(text: str) -> float:
    try:
        temperature = float(text)
    except ValueError as error:
        raise RequestError(
            f"temperature is {text!r}.", "Give a number: /temperature 0.7."
        ) from error
    check_options({"temperature": temperature})
    return temperature


def _welcome(console: Console, setup: dict[str, str]) -> None:
    facts = f"  drafter {setup['drafter']} · backend {setup['backend']} ({setup['backend_note']})"
    console.print(Text.assemble((setup["model"], "bold"), (facts, "dim")), soft_wrap=True)
    console.print("Say something, or /help. Ctrl-C stops an answer, Ctrl-D leaves.", style="dim")


def _overflow(num_tokens: int, context: int) -> RequestError:
    return RequestError(
        f"With this message the conversation has {num_tokens} tokens; the model's context holds "
        f"{context}.",
        "Shorten it, or start again with /reset. The message was not added; the conversation "
        "before it is unchanged.",
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
