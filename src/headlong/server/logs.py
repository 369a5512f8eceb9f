"""Log lines: for people, or one JSON object a line.

In:  log records of our own loggers and uvicorn's; for a finished request, its facts.
Out: lines on standard error, and in a file where one is named. No prompt and no answer is in them
     unless `log_prompts` was set, and no API key ever: a client is called by its key's name.
"""

import json
import logging
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, TextIO

from headlong.server.live import FinishedRequest
from headlong.server.settings import ServerSettings

LOGGER = "headlong"
REQUEST_LOGGER = "headlong.request"

_LOGGERS = (LOGGER, "uvicorn.error")
_MAX_LOG_BYTES = 10 * 2**20

_RECORDED = (
    "mtp", "num_prompt_tokens", "num_cached_tokens", "num_completion_tokens", "finish_reason",
)  # fmt: skip
_REPORTED = ("acceptance_length", "measured_speedup", "off_reason")

# A line stays one line, whatever a client sends.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)}


def set_up_logs(settings: ServerSettings, stream: TextIO | None = None) -> None:
    """Send our lines and uvicorn's to one place in one form."""
    out = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonLines() if writes_json(settings, out) else HumanLines())
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(settings.log_level.upper())
    # Its start-up chatter says less than our banner; its complaints are wanted.
    if settings.log_level != "debug":
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


def log_to_file(path: Path) -> None:
    """Write every line into a file as well, as JSON; the file begins anew."""
    path.unlink(missing_ok=True)
    handler = RotatingFileHandler(path, maxBytes=_MAX_LOG_BYTES, backupCount=1, encoding="utf-8")
    handler.setFormatter(JsonLines())
    for name in _LOGGERS:
        logging.getLogger(name).addHandler(handler)


def writes_json(settings: ServerSettings, stream: TextIO) -> bool:
    """Tell whether lines are for machines: asked for, or the stream is no terminal."""
    return settings.log_format == "json" or (settings.log_format == "auto" and not stream.isatty())


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class HumanLines(logging.Formatter):
    """Time, level where it matters, message."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record."""
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        line = f"{clock} {level}{record.getMessage().translate(_CONTROLS)}"
        if record.exc_info:
            line += f"\n{self.formatException(record.exc_info)}"
        return line


def log_request(facts: Mapping[str, Any], *, is_routine: bool) -> None:
    """Write the line of one answered request; routine ones (health, metrics) only for debugging."""
    status, level = facts["status"], logging.DEBUG if is_routine else logging.INFO
    if status >= 500:  # 503 and 504 are limits at work; 500 is a fault of ours
        level = logging.ERROR if status == 500 else logging.WARNING
    logger = logging.getLogger(REQUEST_LOGGER)
    logger.log(level, "%s", _sentence(facts), extra={"facts": dict(facts)})


def record_facts(record: FinishedRequest) -> dict[str, Any]:
    """Return what a log line says of a generation."""
    return {
        "completion_id": record.id,
        **{name: getattr(record, name) for name in _RECORDED},
        "ttft_ms": None if record.ttft_s is None else round(1e3 * record.ttft_s, 1),
        "tokens_per_second": round(record.tokens_per_second, 1),
        **{name: record.report.get(name) for name in _REPORTED},
    }


def _sentence(facts: Mapping[str, Any]) -> str:
    """Write the facts of a request for people."""
    parts = [
        f"{facts['method']} {facts['path']} {facts['status']}",
        f"{facts['duration_ms'] / 1e3:.2f} s",
    ]
    if "num_prompt_tokens" in facts:
        cached = f" ({facts['num_cached_tokens']} cached)" if facts["num_cached_tokens"] else ""
        tokens = f"{facts['num_prompt_tokens']}{cached} + {facts['num_completion_tokens']} tokens"
        parts += [tokens, f"{facts['tokens_per_second']:.1f}/s", f"mtp {facts['mtp']}"]
        if facts["measured_speedup"] is not None:
            parts.append(f"{facts['measured_speedup']:.2f} ×")
    if facts.get("finish_reason"):
        parts.append(facts["finish_reason"])
    if facts.get("is_disconnected"):
        parts.append("client left")
    if facts.get("client"):
        parts.append(f"key {facts['client']}")
    parts.append(facts["request_id"])
    for name in ("request_body", "response_body"):
        if name in facts:
            parts.append(f"{name}: {facts[name]}")
    return " · ".join(parts)
