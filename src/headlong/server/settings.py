"""Everything `headlong serve` can be told, with its defaults, checked once.

In:  plain values, from code or from `settings_sources`.
Out: a frozen `ServerSettings`. A field's name is its name everywhere: `max_waiting` in a TOML file,
     `--max-waiting` as a flag, `HEADLONG_MAX_WAITING` in the environment.
Knows nothing of files, flags or HTTP.
"""

import ipaddress
from dataclasses import Field, dataclass, field, fields
from typing import Any

from headlong.config import ModelOptions, MtpMode
from headlong.engine.limits import EngineLimits
from headlong.errors import RequestError
from headlong.server import setting_kinds as kinds
from headlong.server.setting_kinds import Kind

KEY_PATTERN = r"[\x21-\x7e]{8,256}"
"""What an API key may be made of: what a header carries unharmed, and nothing a guess finds."""

MIB = 2**20

_ENGINE = EngineLimits()


@dataclass(frozen=True, slots=True)
class ApiKey:
    """Someone who may ask, and what holds for them."""

    key: str = field(repr=False)
    name: str
    """How logs call them; never the key itself."""
    mtp: MtpMode | None = None
    """Their draft policy where a request says none; None for the server's."""
    max_concurrent: int | None = None
    """Their requests at one time; None for the server's `max_concurrent_per_key`."""


def _setting(default: Any, kind: Kind, about: str, group: str) -> Any:
    """Declare a field: its default, what it may be, its help and the group it is shown in."""
    return field(default=default, metadata=_metadata(kind, about, group))


def _metadata(kind: Kind, about: str, group: str) -> dict[str, Any]:
    return {"kind": kind, "about": about, "group": group}


def _whole(default: int | None, about: str, low: int = 1, high: int | None = None) -> Any:
    kind = kinds.whole(low, high)
    return _setting(default, kinds.optional(kind) if default is None else kind, about, "limits")


_ORIGIN = r"\*|https?://[^\s/]+"


@dataclass(frozen=True, slots=True)
class ServerSettings(ModelOptions):
    """How one server runs, and which model."""

    model_name: str | None = _setting(
        None,
        kinds.optional(kinds.text("a name without spaces", r"\S{1,200}")),
        "what clients call the model (default: its file's name)",
        "serving",
    )

    host: str = _setting(
        "127.0.0.1",
        kinds.text("a host name or address", r"[\w.:%-]+", "HOST"),
        "address to listen on; 0.0.0.0 for all of the machine's",
        "serving",
    )
    port: int = _setting(
        8000, kinds.whole(0, 65535), "port to listen on; 0 takes a free one", "serving"
    )
    root_path: str = _setting(
        "",
        kinds.text('a path like /llm, or ""', r"(/[\w.~-]+)*", "PATH"),
        "where a proxy in front mounts the server",
        "serving",
    )
    page: bool = _setting(True, kinds.truth(), "serve the page at /", "serving")
    mtp: MtpMode = field(
        default="auto",
        metadata=_metadata(
            kinds.mtp(), "draft policy of requests that say none: auto, off, or K", "serving"
        ),
    )
    drain_timeout_s: float = _setting(
        30.0,
        kinds.seconds(0, 86400),
        "after SIGTERM, time for running requests before they are cut",
        "serving",
    )

    max_running: int = _whole(_ENGINE.max_running, "requests that decode at one time", high=4096)
    max_waiting: int = _whole(
        _ENGINE.max_waiting, "requests that queue; the next one gets 429", 0, 1_000_000
    )
    max_concurrent: int | None = _whole(None, "requests at one time, running and queued together")
    max_concurrent_per_key: int | None = _whole(None, "the same, of one API key")
    max_prompt_tokens: int | None = _whole(None, "longest prompt (default: the model's context)")
    max_body_bytes: int = _setting(8 * MIB, kinds.size(1024), "largest request body", "limits")
    kv_bytes: int | None = _setting(
        2048 * MIB,
        kinds.optional(kinds.size(MIB)),
        "memory for the caches of all sequences, kept prefixes included",
        "limits",
    )
    prefix_bytes: int = _setting(
        _ENGINE.prefix_bytes,
        kinds.size(0),
        "of that, memory for prefixes of ended requests; 0 keeps none",
        "limits",
    )
    rows_per_step: int = _whole(
        _ENGINE.rows_per_step, "rows of one verify pass, over all sequences", high=4096
    )
    prefill_rows_per_step: int = _whole(
        _ENGINE.prefill_rows_per_step, "prompt tokens of one step", high=65536
    )
    request_timeout_s: float | None = _setting(
        600.0, kinds.optional(kinds.seconds(0.05)), "longest a request may take", "limits"
    )
    body_timeout_s: float = _setting(
        30.0, kinds.seconds(0.05), "longest a client may take to send its body", "limits"
    )

    api_keys: tuple[ApiKey, ...] = ()
    open_metrics: bool = _setting(
        False, kinds.truth(), "answer /metrics without a key (where keys are set)", "access"
    )
    open_page: bool = _setting(
        True,
        kinds.truth(),
        "show the page without a key; it asks for one and sends it (where keys are set)",
        "access",
    )
    cors_origins: tuple[str, ...] = _setting(
        (),
        kinds.texts('origins like https://example.org, or "*"', _ORIGIN, "ORIGIN"),
        "web pages elsewhere that may call the server from a browser",
        "access",
    )
    allowed_hosts: tuple[str, ...] = _setting(
        (),
        kinds.texts("host names", r"[\w.:-]+", "HOST"),
        "names besides this machine's own that a server on loopback without keys answers to",
        "access",
    )

    log_format: str = _setting(
        "auto",
        kinds.word("auto", "human", "json"),
        "log lines for people or as JSON; auto: for people on a terminal",
        "logs",
    )
    log_level: str = _setting(
        "info", kinds.word("debug", "info", "warning", "error"), "least important line", "logs"
    )
    log_prompts: bool = _setting(
        False, kinds.truth(), "write prompts and answers into the log as well", "logs"
    )

    def __post_init__(self) -> None:
        for declared in declared_settings():
            value = getattr(self, declared.name)
            check_value(declared, value, declared.name)
        check_keys(self.api_keys)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False  # a name that may stand for anything

    @property
    def engine_limits(self) -> EngineLimits:
        """What the engine may hold at most."""
        return EngineLimits(
            max_running=self.max_running,
            max_waiting=self.max_waiting,
            kv_bytes=self.kv_bytes,
            prefix_bytes=self.prefix_bytes,
            rows_per_step=self.rows_per_step,
            prefill_rows_per_step=self.prefill_rows_per_step,
        )


def declared_settings() -> tuple[Field[Any], ...]:
    """Return all fields but the API keys, which have a table of their own."""
    return tuple(one for one in fields(ServerSettings) if "about" in one.metadata)


def kind_of(declared: Field[Any]) -> Kind:
    """Return what a setting may be."""
    kind: Kind | None = declared.metadata.get("kind")
    if kind is None:  # an option of the model
        choices = declared.metadata["choices"]
        allowed = "a name" if declared.metadata["metavar"] == "NAME" else "a path or a name"
        kind = kinds.word(*choices) if choices else kinds.text(allowed)
        kind = kinds.optional(kind) if declared.default is None else kind
    return kind


def check_value(declared: Field[Any], value: object, place: str) -> Any:
    """Return a setting's value, read; refuse it with the place it came from."""
    kind = kind_of(declared)
    try:
        return kind.read(value)
    except (ValueError, OverflowError):
        raise RequestError(f"{place} is {value!r}.", f"It must be {kind.allowed}.") from None


def check_keys(keys: tuple[ApiKey, ...]) -> None:
    """Refuse API keys that could be mixed up."""
    seen: dict[str, str] = {}
    names: set[str] = set()
    for key in keys:
        if key.key in seen:
            raise RequestError(
                f"The API keys {seen[key.key]!r} and {key.name!r} are the same key.",
                "Give each its own, or leave one out.",
            )
        if key.name in names:
            raise RequestError(
                f"Two API keys are named {key.name!r}.", "Give each a name of its own."
            )
        seen[key.key] = key.name
        names.add(key.name)
