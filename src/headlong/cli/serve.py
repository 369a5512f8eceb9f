"""`headlong serve [MODEL]`: serve OpenAI's API over HTTP.

In:  flags, `HEADLONG_*` variables, a TOML file.
Out: a server until Ctrl-C or SIGTERM; what it is and where on standard error, logs after that.
     With `--print-config`, the settings in effect and where each came from, and nothing is served.
     With `--json`, one JSON line on standard output: the settings, or the address once it serves.
"""

import argparse
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import Field, dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from headlong.cli.bars import ProgressBar
from headlong.cli.model_arguments import add_model_arguments, load_llm
from headlong.cli.output import add_json_argument, format_bytes, make_console, write_json
from headlong.cli.server_records import ServerRecord, begin_log, engine_logs, listed
from headlong.errors import RequestError
from headlong.server.settings import ServerSettings, declared_settings, kind_of
from headlong.server.settings_sources import DEFAULT, EffectiveSettings, flag_name, read_settings
from headlong.weights.sources import resolve_model
from headlong.weights.store import now

if TYPE_CHECKING:
    from headlong.server.served_model import ServedModel

_GROUPS = ("serving", "engines", "limits", "access", "logs")
_SIZES = ("max_body_bytes", "kv_bytes", "prefix_bytes")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the verb's options; none has a default, since a variable or the file may say."""
    parser.add_argument("named_model", metavar="MODEL", nargs="?", help="the same as --model")
    parser.add_argument("--config", metavar="FILE", help="a TOML file with settings")
    parser.add_argument(
        "--print-config", action="store_true", help="show the settings in effect, and end"
    )
    add_model_arguments(parser)
    groups = {name: parser.add_argument_group(name) for name in _GROUPS}
    for declared in declared_settings():
        if "group" in declared.metadata:
            _add_setting(groups[declared.metadata["group"]], declared)
    access = groups["access"]
    access.add_argument(
        "--api-key",
        action="append",
        metavar="KEY",
        help="a key that requests must carry; may be repeated. Others on this machine can read "
        "flags: a file or HEADLONG_API_KEY keeps it to yourself",
    )
    access.add_argument("--api-key-file", metavar="FILE", help="keys, one a line: KEY, or NAME KEY")
    add_json_argument(parser)
    parser.set_defaults(**{declared.name: None for declared in declared_settings()})


def run(args: argparse.Namespace) -> int:
    """Serve, or show the settings."""
    effective = read_settings(_read_flags(args), os.environ)
    if args.print_config:
        _print_settings(effective, make_console(stderr=args.json))
        if args.json:
            rows = effective.shown()
            write_json({name: {"value": value, "from": source} for name, value, source in rows})
        return 0
    with _stopping_on_sigterm():
        return _serve(effective, as_json=args.json)


@contextmanager
def _stopping_on_sigterm() -> Iterator[None]:
    """Let SIGTERM end the start-up too; the server has its own handler once it serves.

    The first process of a container is not sent signals that it does not handle: without this one
    nothing but SIGKILL would stop a server that pulls or loads its model.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        sys.stderr.write("Stopped.\n")
        raise SystemExit(0)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _serve(effective: EffectiveSettings, *, as_json: bool) -> int:
    # Imported now: they bring numpy and the web's libraries, which --help can do without.
    from headlong.server.app import make_app
    from headlong.server.logs import log_to_file, set_up_logs, writes_json
    from headlong.server.serving import bind, run_server, url_of

    settings, console = effective.settings, make_console(stderr=True)
    for note in effective.notes:
        console.print(f"note: {note}", style="yellow", soft_wrap=True)
    set_up_logs(settings)
    with bind(settings) as listener, ExitStack() as until_end:
        url = url_of(listener)
        problem = begin_log(url, log_to_file)
        if problem is not None:
            console.print(f"note: {problem}", style="yellow", soft_wrap=True)
        model = _load(settings, engine_logs(url), until_end)
        banner = Banner(_lines(model, settings, url), _warnings(settings))
        record = ServerRecord(os.getpid(), url, model.path.name, now())

        def say_ready() -> None:
            if problem is None:
                until_end.enter_context(listed(record))
            if as_json:
                write_json({"url": url, **banner.lines})
            if writes_json(settings, sys.stderr):
                banner.log()
            else:
                banner.print(console)

        return run_server(make_app(model, settings), listener, settings, say_ready)


def _load(settings: ServerSettings, engine_logs: Path, until_end: ExitStack) -> "ServedModel":
    """Load the model into this process, or find the engines that run it."""
    from headlong.server.served_fleet import start_fleet
    from headlong.server.served_model import ServedModel

    if settings.engine == "local":
        llm = load_llm(settings, limits=settings.engine_limits)
        return ServedModel.of_llm(llm, settings.quant)
    with ProgressBar() as progress:
        path = resolve_model(settings.model, progress=progress)
    return start_fleet(path, settings, engine_logs, until_end)


def _add_setting(group: argparse._ArgumentGroup, declared: Field[Any]) -> None:
    """Add the flag of one setting."""
    kind, name = kind_of(declared), flag_name(declared.name)
    about = declared.metadata["about"]
    if "default" not in about and declared.default not in (None, (), "", False):
        about += f" (default: {_show(declared.name, declared.default)})"
    about = about.replace("%", "%%")
    if kind.is_truth:
        group.add_argument(name, action=argparse.BooleanOptionalAction, help=about)
    else:
        action = "append" if kind.is_list else "store"
        group.add_argument(name, action=action, metavar=kind.metavar, help=about)


def _read_flags(args: argparse.Namespace) -> dict[str, Any]:
    """Return the flags by setting; the model may stand alone."""
    flags = {name: value for name, value in vars(args).items() if name != "named_model"}
    if args.named_model is not None and args.model is not None:
        raise RequestError(
            f"Two models are named: {args.named_model} and --model {args.model}.",
            "Leave one out; a server has one model.",
        )
    flags["model"] = args.named_model if args.model is None else args.model
    flags["head"] = None if args.head is None else str(args.head)
    return flags


def _print_settings(effective: EffectiveSettings, console: Console) -> None:
    """Write a line per setting; not as a table, which would cut long paths in a pipe."""
    rows = [("setting", "value", "from")]
    rows += [(name, _show(name, value), source) for name, value, source in effective.shown()]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    for number, (name, value, source) in enumerate(rows):
        style = "bold" if not number else "dim" if source == DEFAULT else ""
        line = f"{name:<{widths[0]}}  {value:<{widths[1]}}  {source}"
        console.print(line, style=style, soft_wrap=True)
    for note in effective.notes:
        make_console(stderr=True).print(f"note: {note}", style="yellow", soft_wrap=True)


def _show(name: str, value: object) -> str:
    """Write a value the way it may be given."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if name in _SIZES and isinstance(value, int) and value and value % 2**20 == 0:
        return f"{value // 2**20}MiB"
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value) or '""'


@dataclass(frozen=True, slots=True)
class Banner:
    """What there is to say once clients can be answered."""

    lines: dict[str, str]
    warnings: list[str]

    def print(self, console: Console) -> None:
        """Say it to people."""
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in self.lines.items():
            table.add_row(name, Text(value, style="bold" if name in ("API", "page") else ""))
        console.print(Text("Headlong serves", style="bold green"))
        console.print(Padding(table, (0, 0, 0, 2)))
        for warning in self.warnings:
            console.print(Text.assemble(("warning: ", "bold yellow"), warning), soft_wrap=True)
        console.print("Ctrl-C lets running requests end; twice leaves at once.", style="dim")

    def log(self) -> None:
        """Say it as log lines, where machines read them."""
        logger = logging.getLogger("headlong.serving")
        logger.info("Headlong serves", extra={"facts": self.lines})
        for warning in self.warnings:
            logger.warning("%s", warning)


def _lines(model: "ServedModel", settings: ServerSettings, url: str) -> dict[str, str]:
    head = "" if model.head_words == "none" else f" ({model.head_words})"
    mode = f"mtp={settings.mtp} unless a request says otherwise"
    kv = "unbounded" if settings.kv_bytes is None else format_bytes(settings.kv_bytes)
    caches = "" if model.replicas else f" · caches {kv}"  # elsewhere they are the engines' business
    prompt = settings.max_prompt_tokens or model.engine.context_length
    return {
        "API": f"{url}/v1",
        **({"page": f"{url}/"} if settings.page else {}),
        "model": f"{model.path.name} · {model.engine.backend}",
        "drafts": f"{model.drafter_words}{head} · {mode}",
        "access": _access(settings),
        "limits": f"{settings.max_running} running, {settings.max_waiting} waiting · prompt "
        f"{prompt:,} tokens · body {format_bytes(settings.max_body_bytes)}{caches}",
        "metrics": f"{url}/metrics",
    }


def _access(settings: ServerSettings) -> str:
    reach = "this machine only" if settings.is_loopback else f"everyone who reaches {settings.host}"
    num_keys = len(settings.api_keys)
    keys = (
        "no API key" if not num_keys else "1 API key" if num_keys == 1 else f"{num_keys} API keys"
    )
    return f"{reach}, {keys}"


def _warnings(settings: ServerSettings) -> list[str]:
    """Say what is open that perhaps should not be."""
    warnings = []
    if not settings.is_loopback and not settings.api_keys:
        warnings.append(
            f"everyone who reaches {settings.host} can use this server. Set API keys with "
            "--api-key-file, or listen on 127.0.0.1."
        )
    if not settings.is_loopback and settings.api_keys:
        warnings.append("keys travel in the clear: put TLS in front (docs/server.md shows nginx).")
    if settings.log_prompts:
        warnings.append("prompts and answers are written into the log (log_prompts).")
    if "*" in settings.cors_origins + settings.allowed_hosts and not settings.api_keys:
        warnings.append(
            "every web page a user of this machine opens can use the server (* in cors_origins or "
            "allowed_hosts)."
        )
    return warnings
