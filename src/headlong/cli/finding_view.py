"""How findings of the doctor look: a coloured mark, what was checked, what was seen, what to do.

In:  findings, as they come. Out: rows on a console.
"""

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headlong.cli.output import printable

if TYPE_CHECKING:
    from headlong.doctor.finding import Finding

_MARKS = {
    "ok": ("✓", "green"),
    "warning": ("!", "yellow"),
    "fault": ("✗", "bold red"),
    "skipped": ("–", "dim"),
}
_CHECK_WIDTH = 17


class FindingPrinter:
    """Prints findings as they come, with a title wherever a section begins."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._title = ""

    def show(self, title: str, finding: "Finding") -> None:
        """Print one finding and its remedy."""
        if title != self._title:
            self._console.print(Text(title, style="bold"))
            self._title = title
        level = finding.level.value
        mark, style = _MARKS[level]
        seen = f"not checked: {finding.seen}" if level == "skipped" else finding.seen
        rows = [
            (Text(mark, style), Text(finding.check), Text(seen, "" if level == "ok" else style))
        ]
        if finding.remedy:
            rows.append((Text(), Text(), Text.assemble(("→ ", "bold green"), finding.remedy)))
        for row in rows:
            self._print_row([_clean(part) for part in row])

    def _print_row(self, parts: list[Text]) -> None:
        """Print mark, name and text as columns; without a terminal, a line stays a line."""
        if not self._console.is_terminal:
            mark, name, text = parts
            self._console.print(
                Text(f"  {mark.plain or ' '} {name.plain:<{_CHECK_WIDTH}}").append_text(text),
                soft_wrap=True,
            )
            return
        grid = Table.grid(padding=(0, 1), expand=True)
        grid.add_column(width=3, justify="right")
        grid.add_column(width=_CHECK_WIDTH - 1, no_wrap=True)
        grid.add_column(ratio=1)
        grid.add_row(*parts)
        self._console.print(grid)


def _clean(text: Text) -> Text:
    """Take control characters out: names and texts come from a file that anyone may have made."""
    text.plain = printable(text.plain)
    return text


def plural(number: int, word: str) -> str:
    """Write a number with its word: 1 fault, 2 faults."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
