"""How `headlong inspect` shows a head by itself.

In:  `HeadFacts`. Out: lines on a console.
"""

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headlong.cli.head_facts import HeadFacts
from headlong.cli.output import format_bytes, format_path, printable

_KINDS = {
    "eagle3": "EAGLE-3 format, one layer that drafts recursively",
    "nextn": "MTP layer, drafts recursively",
    "medusa": "Medusa heads, one for each depth",
    "meta": "parallel heads, one layer for each depth",
    "assistant": "assistant that reads the model's own keys and values",
}


def print_head(facts: HeadFacts, console: Console) -> None:
    """Show a head."""
    console.print(Text(printable(facts.path.name), style="bold"), soft_wrap=True)
    console.print(printable(format_path(facts.path)), style="cyan", soft_wrap=True)
    console.print()
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for label, value in _describe(facts):
        table.add_row(label, Text(printable(value)))
    console.print(table)


def _describe(facts: HeadFacts) -> Iterator[tuple[str, str]]:
    switches = f" · {', '.join(facts.switches)}" if facts.switches else ""
    yield "head", f"{_KINDS[facts.kind]}{switches}"
    yield "fits", _whom_it_fits(facts)
    if facts.model is not None:
        yield "made for", facts.model
    if facts.kind == "eagle3":
        taps = ", ".join(map(str, facts.tap_layers)) or "2, N / 2 and N - 3 of N"
        yield "reads", f"inputs of layers {taps}"
    count = facts.draft_vocab_size
    yield "drafts from", "all tokens" if count is None else f"{count:,} tokens"
    if facts.kind in ("eagle3", "nextn"):
        own = " and ".join(facts.own_parts)
        yield "brings", f"its own {own}" if own else "neither embedding nor LM head"
    yield "stored", f"{format_bytes(facts.stored_bytes)} as {', '.join(facts.stored_as)}"
    yield "try", f"headlong inspect MODEL --head {facts.path}"


def _whom_it_fits(facts: HeadFacts) -> str:
    """Say which models it can draft for."""
    facts_known = []
    if facts.architecture is not None:
        facts_known.append(f"architecture {facts.architecture}")
    if facts.hidden_size is not None:
        facts_known.append(f"hidden states of {facts.hidden_size:,}")
    if facts.vocab_size is not None:
        facts_known.append(f"{facts.vocab_size:,} tokens")
    if facts.num_layers is not None:
        facts_known.append(f"{facts.num_layers} layers")
    elif facts.tap_layers:
        facts_known.append(f"more than {facts.tap_layers[-1]} layers")
    return f"models with {', '.join(facts_known)}" if facts_known else "its files do not say"
