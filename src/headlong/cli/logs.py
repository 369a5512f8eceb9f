"""`headlong logs [SERVER]`: what a server has logged.

In:  the port or process of a server; none means the latest one.
Out: its last lines, for people or as the JSON they are kept as; with --follow the next ones too.
"""

import argparse
import json
import os
import sys
import time
from collections import deque
from datetime import datetime
from pathlib import Path

from headlong.cli.output import make_console, printable
from headlong.cli.server_records import log_path, logged_ports, running_servers
from headlong.errors import RequestError

_EVERY_S = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the verb's options."""
    parser.add_argument(
        "server",
        nargs="?",
        type=int,
        metavar="SERVER",
        help="port or process id of a server (default: the one that started last)",
    )
    parser.add_argument(
        "--lines", "-n", type=int, default=50, metavar="N", help="show so many lines (default: 50)"
    )
    parser.add_argument(
        "--follow", "-f", action="store_true", help="go on as more comes, until the server ends"
    )
    parser.add_argument("--json", action="store_true", help="show the JSON line of each entry")


def run(args: argparse.Namespace) -> int:
    """Show the end of a log, and what follows."""
    if args.lines < 0:
        raise RequestError(f"--lines is {args.lines}.", "Give 0 or more.")
    port = _find_port(args.server)
    path = log_path(port)
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in deque(file, maxlen=args.lines):
            _show(line, as_json=args.json)
    if args.follow:
        try:
            _follow(path, port, as_json=args.json)
        except KeyboardInterrupt:
            sys.stderr.write("\n")
    return 0


def _find_port(asked: int | None) -> int:
    """Return the port of the server that is meant."""
    running, logged = running_servers(), logged_ports()
    if asked is None and (running or logged):
        return running[0].port if running else logged[0]
    for record in running:
        if asked in (record.pid, record.port):
            return record.port
    if asked in logged:
        return asked
    if asked is None:
        raise RequestError("No server of yours has logged anything.", "Start one: headlong serve.")
    known = ", ".join(map(str, logged)) or "none"
    raise RequestError(
        f"No server of yours has the port or process id {asked}.",
        f"Logs are there of the ports: {known}. `headlong ps` lists what runs.",
    )


def _follow(path: Path, port: int, *, as_json: bool) -> None:
    """Show lines as they are written, until the server has ended."""
    file = path.open(encoding="utf-8", errors="replace")
    file.seek(0, 2)
    try:
        is_running = True
        while is_running:
            # Asked before reading, so that the last lines of a server are not missed.
            is_running = any(record.port == port for record in running_servers())
            for line in file:
                _show(line, as_json=as_json)
            if path.exists() and path.stat().st_ino != os.fstat(file.fileno()).st_ino:
                file.close()  # it was full, and another one begun
                file = path.open(encoding="utf-8", errors="replace")
            elif is_running:
                time.sleep(_EVERY_S)
    finally:
        file.close()
    make_console(stderr=True).print("The server has ended.", style="dim")


def _show(line: str, *, as_json: bool) -> None:
    """Write one entry."""
    sys.stdout.write(line if as_json else f"{_for_people(line)}\n")
    sys.stdout.flush()


def _for_people(line: str) -> str:
    try:
        entry = json.loads(line)
        clock = datetime.fromisoformat(entry["time"]).astimezone().strftime("%H:%M:%S")
        level = "" if entry["level"] in ("info", "debug") else f"{entry['level']}: "
        trace = f"\n{entry['traceback']}" if "traceback" in entry else ""
        return f"{clock} {level}{printable(entry['message'])}{printable(trace)}"
    except (ValueError, KeyError, TypeError):  # half a line, after a crash
        return printable(line.rstrip("\n"))
