"""The commands of a chat: what begins with a slash.

In:  a line such as "/set temperature 0.7".
Out: a changed conversation, and what to say about it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console
from rich.text import Text

from headlong.cli.clipboard import copy_text
from headlong.cli.conversation import Conversation
from headlong.cli.sampling_arguments import (
    check_options,
    describe_settings,
    parse_mtp,
    parse_setting,
    setting_names,
)
from headlong.cli.sessions import (
    LAST,
    Session,
    describe_sessions,
    list_sessions,
    load_session,
    save_session,
)
from headlong.cli.verbs import nearest
from headlong.errors import RequestError

if TYPE_CHECKING:
    from headlong.llm import GenerateOptions

_OTHER_NAMES = {
    "bye": "quit", "exit": "quit", "q": "quit", "clear": "reset", "new": "reset",
    "regenerate": "retry", "again": "retry", "?": "help",
}  # fmt: skip
"""What other programs call the same."""


class ChatCommands:
    """Carries commands out on one conversation, and keeps it on disk where it has a name."""

    def __init__(self, conversation: Conversation, console: Console, model: str) -> None:
        self.session_name: str | None = None
        """What the conversation is kept as after every turn; None where it is not."""
        self._is_on_disk = False
        self._conversation = conversation
        self._console = console
        self._model = model

    def carry_out(self, line: str) -> bool:
        """Do what a command asks; return whether the conversation goes on."""
        word, _, value = line[1:].partition(" ")
        if word == "quit":
            return False
        if word not in COMMANDS:
            raise _unknown(word, value.strip())
        COMMANDS[word].run(self, value.strip())
        return True

    def keep(self) -> None:
        """Write the conversation down if it has a name and anything was said."""
        talk = self._conversation
        if self.session_name is not None and (talk.messages or self._is_on_disk):
            self._is_on_disk = True
            save_session(self.session_name, Session(self._model, talk.system, talk.messages))

    def resume(self, name: str, session: Session) -> None:
        """Go on with a conversation that was kept."""
        talk = self._conversation
        talk.system, talk.messages = session.system, session.messages
        self.session_name, self._is_on_disk = name, True
        num_answers = len(session.messages) // 2
        count = f"{num_answers} answer{'' if num_answers == 1 else 's'}"
        held = "" if session.model == self._model else f", held with {session.model}"
        self._say(f"Going on with {name!r}: {count} so far{held}.")
        if session.messages:
            self._say(f"You said last: {_shorten(session.messages[-2]['content'])}")

    def help(self, value: str) -> None:
        """List the commands."""
        self._console.print(help_text())

    def reset(self, value: str) -> None:
        """Begin a new conversation, which has no name."""
        self._conversation.reset()
        if self.session_name is not None:
            self.session_name, self._is_on_disk = LAST, False
        self._say("A new conversation.")

    def system(self, value: str) -> None:
        """Show or change the system message."""
        talk = self._conversation
        if value:
            talk.system = None if value == "none" else value
        self._say(f"System message: {talk.system or 'none'}")

    def set(self, value: str) -> None:
        """Show the settings, or change one."""
        options: dict[str, Any] = dict(self._conversation.options)
        name, _, text = value.partition(" ")
        name = name.replace("-", "_")
        if not name:
            self._console.print(describe_settings(options))
            return
        if not text:
            self._console.print(describe_settings(options, name))
            return
        options.pop(name, None)
        if text.strip() != "default":
            options[name] = parse_setting(name, text.strip())
        elif name not in setting_names():
            parse_setting(name, text)  # refuses the name
        check_options(options)
        self._conversation.options = cast("GenerateOptions", options)
        self._console.print(describe_settings(options, name))

    def mtp(self, value: str) -> None:
        """Show or change how the next answers draft."""
        options = self._conversation.options
        if value:
            options["mtp"] = parse_mtp(value)
        self._say(f"MTP is {options.get('mtp', 'auto')}.")

    def retry(self, value: str) -> None:
        """Answer the last message again."""
        talk = self._conversation
        before = talk.last_answer
        if not talk.retry():
            raise RequestError("There is no message to answer again.", "Say something first.")
        if talk.last_answer == before:
            self._say("The same: it varies with /set temperature 0.8, and no seed.")
        self.keep()

    def undo(self, value: str) -> None:
        """Forget the last message and its answer."""
        message = self._conversation.undo()
        if message is None:
            raise RequestError("There is nothing to undo.", "")
        self._say(f"Forgotten: {_shorten(message)}")
        self.keep()

    def copy(self, value: str) -> None:
        """Put the last answer on the clipboard."""
        answer = self._conversation.last_answer
        if answer is None:
            raise RequestError("There is no answer to copy.", "Say something first.")
        place = copy_text(answer)
        self._say(f"Copied {len(answer):,} characters (by {place}).")

    def save(self, value: str) -> None:
        """Keep the conversation under a name, from now on after every turn."""
        talk = self._conversation
        name = value or self.session_name or LAST
        path = save_session(name, Session(self._model, talk.system, talk.messages))
        self.session_name, self._is_on_disk = name, True
        self._say(f"Kept as {name!r} ({path}), and after every answer from now on.")

    def load(self, value: str) -> None:
        """Go on with a conversation that was kept, or list them."""
        if value:
            self.resume(value, load_session(value))
        else:
            self._say(describe_sessions())

    def stats(self, value: str) -> None:
        """Show what all answers so far drafted and gained."""
        self._console.print(self._conversation.describe_stats())

    def quit(self, value: str) -> None:
        """Leave; `carry_out` does."""

    def _say(self, text: str) -> None:
        self._console.print(Text(text), style="dim", soft_wrap=not self._console.is_terminal)


@dataclass(frozen=True, slots=True)
class Command:
    """One command: how it is written, what it does."""

    arguments: str
    about: str
    run: Callable[[ChatCommands, str], None]


COMMANDS = {
    "help": Command("", "this list", ChatCommands.help),
    "reset": Command("", "forget the conversation, keep the settings", ChatCommands.reset),
    "undo": Command("", "forget the last message and its answer", ChatCommands.undo),
    "retry": Command("", "answer the last message again", ChatCommands.retry),
    "copy": Command("", "put the last answer on the clipboard", ChatCommands.copy),
    "system": Command("[TEXT|none]", "show or change the system message", ChatCommands.system),
    "set": Command(
        "[NAME [X]]",
        "show the settings, or change one: /set temperature 0.7",
        ChatCommands.set,
    ),
    "mtp": Command(
        "[auto|off|K]",
        "how the next answers draft; their text stays the same",
        ChatCommands.mtp,
    ),
    "save": Command("[NAME]", "keep the conversation under a name", ChatCommands.save),
    "load": Command("[NAME]", "go on with one that was kept, or list them", ChatCommands.load),
    "stats": Command("", "what all answers so far drafted and gained", ChatCommands.stats),
    "quit": Command("", "leave (so does Ctrl-D)", ChatCommands.quit),
}


def help_text() -> str:
    """List the commands and what else can be typed."""
    rows = [(f"/{name} {one.arguments}".strip(), one.about) for name, one in COMMANDS.items()]
    width = max(len(usage) for usage, _ in rows)
    lines = [f"  {usage:<{width}}  {about}" for usage, about in rows]
    return "\n".join(
        [
            *lines,
            "",
            'Messages of many lines: paste them, begin and end with """, end a line with \\, or',
            "press Alt-Enter. Ctrl-C stops the answer that is being written. A line that begins",
            "with a space is no command.",
        ]
    )


def complete_command(text: str) -> list[str]:
    """List how a command that was begun can go on."""
    if text.startswith("/set "):
        words = [f"/set {name} " for name in setting_names()]
    elif text.startswith("/load "):
        words = [f"/load {name}" for name in list_sessions()]
    elif text.startswith("/mtp "):
        words = ["/mtp auto", "/mtp off"]
    else:
        words = [f"/{name}{' ' if one.arguments else ''}" for name, one in COMMANDS.items()]
    return [word for word in words if word.startswith(text)] if text.startswith("/") else []


def _unknown(word: str, value: str) -> RequestError:
    """Say what an unknown command was probably meant to be."""
    name = word.lower()
    if name.replace("-", "_") in setting_names():
        guess = f"Did you mean /set {word} {value}".rstrip() + "? "
    else:
        near = _OTHER_NAMES.get(name) or nearest(name, COMMANDS)
        guess = f"Did you mean /{near}? " if near else ""
    problem = f"There is no command '/{word}'."
    return RequestError(problem, f"{guess}/help lists them; to say it, put a space before it.")


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:59]}…"
