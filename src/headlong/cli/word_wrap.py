"""Word wrapping for text that is streamed to a terminal in pieces.

In:  pieces of a text as they are written, each with its style.
Out: the same on a terminal, with the last word moved to the next line where it would not fit.
Lines of code blocks are left to the terminal, which gives them back whole when they are copied.
"""

import re

from rich.cells import cell_len
from rich.console import Console
from rich.style import Style

_PIECES = re.compile(r"\n|[^\S\n]+|\S+")
_FENCES = ("```", "~~~")


class WordWrap:
    """Writes to a console's file and keeps account of the line it is on."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._is_code = False
        self._width = console.width
        self._line = ""
        self._column = 0
        self._word: list[tuple[str, Style | None]] = []
        """What is written of the last word."""

    def write(self, text: str, style: Style | None) -> None:
        """Write a piece at once."""
        for piece in _PIECES.findall(text):
            if piece == "\n":
                self._is_code ^= self._line.lstrip().startswith(_FENCES)
                self._put(piece, None)
                self._begin_line()
            elif piece.isspace():
                self._write_space(piece, style)
            else:
                self._write_part_of_word(piece, style)
        self._console.file.flush()

    def _write_space(self, piece: str, style: Style | None) -> None:
        self._word = []
        if self._column + len(piece) > self._width and not self._is_code:
            self._column = self._width  # the next word begins a line; this one ends without it
        else:
            self._put(piece, style)

    def _begin_line(self) -> None:
        self._width = self._console.width
        self._line = ""
        self._column = 0
        self._word = []

    def _write_part_of_word(self, piece: str, style: Style | None) -> None:
        """Write letters; where they do not fit, take what is there of their word along."""
        written = sum(cell_len(part) for part, _ in self._word)
        is_over = self._column + cell_len(piece) > self._width
        is_fence = self._line.lstrip().startswith(_FENCES)
        # A word longer than a line gains nothing; nor does the first one of a line.
        is_moved = is_over and written + cell_len(piece) <= self._width and self._column > written
        if is_moved and not (self._is_code or is_fence):
            back = f"\033[{written}D\033[K" if written else ""
            self._console.file.write(f"{back}\n")
            moved, self._word, self._column = self._word, [], 0
            for part, its_style in moved:
                self._put(part, its_style)
                self._word.append((part, its_style))
        self._put(piece, style)
        self._word.append((piece, style))

    def _put(self, piece: str, style: Style | None) -> None:
        self._console.file.write(style.render(piece) if style else piece)
        self._line += piece
        # Tabs move to the next multiple of eight.
        for part in re.split("(\t)", piece):
            self._column += 8 - self._column % 8 if part == "\t" else cell_len(part)
