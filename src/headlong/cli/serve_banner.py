"""What `headlong serve` says when it is ready: what runs, where, for whom, within which limits.

In:  the loaded model, the settings, the address.
Out: a few lines on standard error for people, or one log line with the same facts for machines.
"""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from headlong.cli.model_arguments import describe_setup
from headlong.cli.output import format_bytes
from headlong.server.settings import ServerSettings

if TYPE_CHECKING:
    from headlong.llm import LLM


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


def make_banner(llm: "LLM", settings: ServerSettings, url: str) -> Banner:
    """Put together what runs, where, for whom and within which limits."""
    return Banner(_lines(llm, settings, url), _warnings(settings))


def _lines(llm: "LLM", settings: ServerSettings, url: str) -> dict[str, str]:
    setup = describe_setup(llm)
    kv = "unbounded" if settings.kv_bytes is None else format_bytes(settings.kv_bytes)
    prompt = settings.max_prompt_tokens or llm.backbone.config.context_length
    return {
        "API": f"{url}/v1",
        **({"page": f"{url}/"} if settings.page else {}),
        "model": f"{setup['model']} · {setup['backend']} ({setup['backend_note']})",
        "drafts": f"{_drafter(llm)} · mtp={settings.mtp} unless a request says otherwise",
        "access": _access(settings),
        "limits": f"{settings.max_running} running, {settings.max_waiting} waiting · prompt "
        f"{prompt:,} tokens · body {format_bytes(settings.max_body_bytes)} · caches {kv}",
        "metrics": f"{url}/metrics",
    }


def _drafter(llm: "LLM") -> str:
    """Say who drafts."""
    drafter = llm.drafter
    if drafter is None:
        return "nobody: the model was loaded without a drafter"
    if llm.head is None:
        return {"ngram": "n-grams", "draft-model": "a draft model"}.get(drafter.name, drafter.name)
    size = format_bytes(llm.head.num_bytes)
    chain = "n-grams and " if drafter.name == "chain" else ""
    return f"{chain}{llm.head.kind} head ({size})"


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
    if "*" in settings.cors_origins and not settings.api_keys:
        warnings.append("every web page a user of this machine opens can use the server (CORS *).")
    return warnings
