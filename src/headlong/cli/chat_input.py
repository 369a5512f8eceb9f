'''Input of a chat: single lines, commands, and messages of many lines.

In:  a terminal with line editing, or a pipe.
Out: one turn after the other. A message has several lines if it is pasted as one, if a line ends
     with a backslash, and between """ and """.
'''

import importlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from headlong.cli.answer_view import can_colour
from headlong.cli.output import read_stdin
from headlong.cli.state import make_private_folder, state_dir

QUOTES = '"""'
HISTORY_LENGTH = 1000

_PROMPT, _MORE = "> ", "… "
_COLOUR = "\033[1;34m"


@dataclass(frozen=True, slots=True)
class Turn:
    """What the user said at once."""

    text: str
    is_command: bool = False


class TurnReader:
    """Reads turns until there are no more."""

    def __init__(self, console: Console, complete: Callable[[str], list[str]]) -> None:
        """Begin to read; `complete` lists how a command that was begun can go on."""
        self._console = console
        self.is_typed = sys.stdin.isatty()
        # `input` would write its prompt into a pipe.
        self._has_editing = self.is_typed and sys.stdout.isatty()
        self._history = _History(complete, console) if self._has_editing else None

    def read(self) -> Turn | None:
        """Return the next turn, None at the end."""
        if self.is_typed:
            self._console.print()
        try:
            turn = self._read_turn()
        except KeyboardInterrupt:
            self._console.print("\nCtrl-D or /quit leaves.", style="dim")
            return Turn("")
        if turn and turn.text and self._history:
            self._history.add(turn.text)
        return turn

    def _read_turn(self) -> Turn | None:
        line = self._read_line(_PROMPT)
        if line is None:
            return None
        is_command = line.startswith("/")
        head, quotes, rest = line.partition(QUOTES)
        if quotes and (not head or (is_command and head.endswith(" "))):
            return Turn(head + self._read_block(rest), is_command)
        while line.endswith("\\"):
            line = f"{line[:-1]}\n{self._read_line(_MORE) or ''}"
        return Turn(line.strip(), is_command)

    def _read_block(self, line: str | None) -> str:
        """Return the text up to the closing quotes, which may be in the first line."""
        lines = []
        while line is not None:
            text = line.rstrip()
            lines.append(text.removesuffix(QUOTES) if text.endswith(QUOTES) else line)
            if text.endswith(QUOTES):
                break
            line = self._read_line(_MORE)
        return "\n".join(lines).strip("\n")

    def _read_line(self, prompt: str) -> str | None:
        """Return the next line without its end, None when there is none."""
        if not self._has_editing:
            if self.is_typed:
                sys.stderr.write(prompt)
                sys.stderr.flush()
            line = read_stdin(whole=False)
            return line.rstrip("\n") if line else None
        if can_colour(self._console):
            # \001 and \002 keep readline from counting colour codes as letters.
            prompt = f"\001{_COLOUR}\002{prompt}\001\033[0m\002"
        try:
            return input(prompt)
        except EOFError:
            self._console.print()
            return None


class _History:
    """What was typed, in this chat and earlier ones, under the arrow keys."""

    def __init__(self, complete: Callable[[str], list[str]], console: Console) -> None:
        self._path: Path | None = state_dir() / "chat-history.jsonl"
        self._readline: Any = None
        try:
            self._readline = importlib.import_module("readline")
        except ImportError:  # some systems come without it
            return
        self._complete = complete
        self._set_up_keys()
        try:
            make_private_folder(self._path.parent)
            texts = self._read(self._path)
        except OSError as error:
            console.print(f"note: no history: {error}", style="yellow", soft_wrap=True)
            self._path, texts = None, []
        for text in texts:
            self._readline.add_history(text)

    def add(self, text: str) -> None:
        """Remember what was typed."""
        if self._readline is None:
            return
        self._readline.add_history(text)
        if self._path is not None:
            # Written at once: a chat may end in any way.
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with open(descriptor, "a", encoding="utf-8") as file:
                file.write(json.dumps(text, ensure_ascii=False) + "\n")

    def _set_up_keys(self) -> None:
        readline = self._readline
        readline.set_auto_history(False)  # a turn of many lines is one entry
        readline.set_completer_delims("\n")
        readline.set_completer(self._suggest)
        if "libedit" in (readline.__doc__ or ""):
            readline.parse_and_bind("bind ^I rl_complete")
            return
        readline.parse_and_bind("tab: complete")
        # What is pasted becomes one message, however many lines it has.
        readline.parse_and_bind("set enable-bracketed-paste on")
        # Alt-Enter begins a new line.
        readline.parse_and_bind(r'"\e\C-m": "\C-v\C-j"')

    def _suggest(self, text: str, number: int) -> str | None:
        found = self._complete(text)
        return found[number] if number < len(found) else None

    @staticmethod
    def _read(path: Path) -> list[str]:
        """Return the entries that count, and drop the others from the file when they are many."""
        if not path.exists():
            return []
        lines = path.read_text("utf-8", errors="replace").splitlines()
        if len(lines) > 2 * HISTORY_LENGTH:
            path.write_text("\n".join(lines[-HISTORY_LENGTH:]) + "\n", "utf-8")
        texts = []
        for line in lines[-HISTORY_LENGTH:]:
            try:
                texts.append(str(json.loads(line)))
            except ValueError:  # half a line, after a power cut
                continue
        return texts
