"""`headlong ps`: the servers that run on this machine.

In:  the records servers leave in the user's state folder, and their health.
Out: a table, or JSON.
"""

import argparse
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import httpx
from rich.table import Table

from headlong.cli.bars import format_duration
from headlong.cli.output import add_json_argument, make_console, write_json
from headlong.cli.server_records import ServerRecord, log_path, running_servers

_TIMEOUT_S = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the verb's options."""
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """List the servers, the latest first."""
    rows = [_describe(record) for record in running_servers()]
    if args.json:
        write_json({"servers": rows})
    elif rows:
        _print_table(rows)
    else:
        text = "No server of yours runs here. `headlong serve` starts one."
        make_console().print(text, style="dim", soft_wrap=True)
    return 0


def _describe(record: ServerRecord) -> dict[str, Any]:
    up_s = (datetime.now(UTC) - datetime.fromisoformat(record.started_at)).total_seconds()
    log = str(log_path(record.port))
    return asdict(record) | {"up_s": round(up_s), "log": log, "health": _ask(record.url)}


def _ask(url: str) -> dict[str, Any] | None:
    """Return what a server says of itself, None when it does not answer."""
    try:
        answer = httpx.get(f"{url}/health", timeout=_TIMEOUT_S, trust_env=False).json()
    except (httpx.HTTPError, ValueError):
        return None
    return answer if isinstance(answer, dict) else None


def _print_table(rows: list[dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("model", overflow="fold")
    table.add_column("address", no_wrap=True)
    table.add_column("pid", justify="right", no_wrap=True)
    table.add_column("up", justify="right", no_wrap=True)
    table.add_column("requests")
    for row in rows:
        health = row["health"]
        style = "" if health and health.get("status") == "ok" else "red"
        up = format_duration(row["up_s"])
        table.add_row(row["model"], row["url"], str(row["pid"]), up, _requests(health), style=style)
    make_console().print(table)


def _requests(health: dict[str, Any] | None) -> str:
    if health is None:
        return "does not answer"
    if health.get("status") != "ok":
        return str(health.get("problem") or "down")
    return f"{health.get('num_running')} running, {health.get('num_waiting')} waiting"
