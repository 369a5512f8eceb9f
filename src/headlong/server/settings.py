"""All settings of `headlong serve`, with their defaults, checked once.

In:  plain values, from code or from `settings_sources`.
Out: a frozen `ServerSettings`. A field's name is its name everywhere: `max_waiting` in a TOML file,
     `--max-waiting` as a flag, `HEADLONG_MAX_WAITING` in the environment.
Knows nothing of files, flags or HTTP.
"""

import ipaddress
from dataclasses import Field, dataclass, field, fields
from functools import partial
from typing import Any

from headlong.config import MAX_DRAFT_TOKENS, ModelOptions, MtpMode
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
    """Their `mtp` where a request names none; None for the server's."""
    max_concurrent: int | None = None
    """Their requests at one time; None for the server's `max_concurrent_per_key`."""


def _setting(group: str, default: Any, kind: Kind, about: str) -> Any:
    """Declare a field: the group it is shown in, its default, what it may be, and its help."""
    return field(default=default, metadata={"kind": kind, "about": about, "group": group})


def _whole(default: int | None, about: str, low: int = 1, high: int | None = None) -> Any:
    kind = kinds.whole(low, high)
    return _limit(default, kinds.optional(kind) if default is None else kind, about)


_serving, _engines, _limit, _access, _logs = (
    partial(_setting, group) for group in ("serving", "engines", "limits", "access", "logs")
)
_NAME = kinds.optional(kinds.text("a name without spaces", r"\S{1,200}"))
_HOST = kinds.text("a host name or address", r"[\w.:%-]+", "HOST")
_PATH = kinds.text('a path like /llm, or ""', r"(/[\w.~-]+)*", "PATH")
_ORIGINS = kinds.texts('origins like https://example.org, or "*"', r"\*|https?://[^\s/]+", "ORIGIN")
_HOSTS = kinds.texts('host names, or "*"', r"\*|[\w.:-]+", "HOST")
_URLS = kinds.texts("addresses like http://10.0.0.5:8000", r"https?://[^\s/=]+(/[^\s=]*)?", "URL")
_DRAFTING_URLS = kinds.texts(
    "addresses with what is drafted there, like http://10.0.0.5:8000=4",
    r"https?://[^\s/=]+(/[^\s=]*)?=([1-9]|1[0-6])",
    "URL=K",
)
_TRUTH = kinds.truth()
_ARGUMENTS = kinds.optional(kinds.text("words for a command line", metavar="WORDS"))


@dataclass(frozen=True, slots=True)
class ServerSettings(ModelOptions):
    """How one server runs, and which model."""

    model_name: str | None = _serving(
        None, _NAME, "what clients call the model (default: its file's name)"
    )
    host: str = _serving(
        "127.0.0.1", _HOST, "address to listen on; 0.0.0.0 for all of the machine's"
    )
    port: int = _serving(8000, kinds.whole(0, 65535), "port to listen on; 0 takes a free one")
    root_path: str = _serving("", _PATH, "where a proxy in front mounts the server")
    page: bool = _serving(True, _TRUTH, "serve the page at /")
    mtp: MtpMode = _serving(  # noqa: RUF009  # a field, like all others
        "auto", kinds.mtp(), "draft policy of requests that say none: auto, off, or K"
    )
    drain_timeout_s: float = _serving(
        30.0,
        kinds.seconds(0, 86400),
        "after SIGTERM, time for running requests before they are cut",
    )

    engine: str = _engines(
        "local",
        kinds.word("local", "vllm", "llama.cpp", "sglang", "ollama", "openai"),
        "what computes: local, this process; else engines of this kind, found at addresses",
    )
    engine_url: tuple[str, ...] = _engines(
        (), _URLS, "address of an engine that does not draft; may be repeated"
    )
    speculative_url: tuple[str, ...] = _engines(
        (), _DRAFTING_URLS, "address of one that drafts K tokens; may be repeated"
    )
    engine_model: str | None = _engines(
        None, kinds.optional(kinds.text("a name")), "what the engines call the model"
    )
    engine_key_file: str | None = _engines(
        None, kinds.optional(kinds.text("a path")), "file with the API key that engines want"
    )
    engine_first_token_s: float = _engines(
        120.0, kinds.seconds(0.1), "an engine that takes longer to its first token has failed"
    )
    engine_next_token_s: float = _engines(30.0, kinds.seconds(0.1), "the same of every later token")
    engine_start_s: float = _engines(600.0, kinds.seconds(0), "how long to wait for a first engine")
    replicas: int = _engines(0, kinds.whole(0, 256), "engines to start here that do not draft")
    speculative_replicas: int = _engines(0, kinds.whole(0, 256), "engines to start that draft")
    speculative_tokens: int = _engines(
        4, kinds.whole(1, MAX_DRAFT_TOKENS), "K of engines that are started with --head"
    )
    engine_command: str | None = _engines(
        None, _ARGUMENTS, "program that is started, with its first arguments (default: the usual)"
    )
    engine_args: str | None = _engines(
        None, _ARGUMENTS, "the engines' own options, as one word: --engine-args='--seed 3'"
    )
    speculative_args: str | None = _engines(None, _ARGUMENTS, "the same of those that draft")
    probe_every_s: float | None = _engines(
        3600.0,
        kinds.optional(kinds.seconds(1)),
        "how often engines that draft are probed, besides at their start; none: never",
    )
    probe_timeout_s: float = _engines(300.0, kinds.seconds(1), "the most that a probe may take")
    probe_tokens: int = _engines(
        30_000, kinds.whole(100), "tokens that a probe may let engines write and score"
    )

    max_running: int = _whole(_ENGINE.max_running, "requests that decode at one time", high=4096)
    max_waiting: int = _whole(
        _ENGINE.max_waiting, "requests that queue; the next one gets 429", 0, 1_000_000
    )
    max_concurrent: int | None = _whole(None, "requests at one time, running and queued together")
    max_concurrent_per_key: int | None = _whole(None, "the same, of one API key")
    max_prompt_tokens: int | None = _whole(None, "longest prompt (default: the model's context)")
    max_body_bytes: int = _limit(8 * MIB, kinds.size(1024), "largest request body")
    kv_bytes: int | None = _limit(
        2048 * MIB,
        kinds.optional(kinds.size(MIB)),
        "memory for the caches of all sequences, kept prefixes included",
    )
    prefix_bytes: int = _limit(
        _ENGINE.prefix_bytes,
        kinds.size(0),
        "of that, memory for prefixes of ended requests; 0 keeps none",
    )
    rows_per_step: int = _whole(
        _ENGINE.rows_per_step, "rows of one verify pass, over all sequences", high=4096
    )
    prefill_rows_per_step: int = _whole(
        _ENGINE.prefill_rows_per_step, "prompt tokens of one step", high=65536
    )
    honour_k: bool = _limit(
        _ENGINE.honour_k,
        _TRUTH,
        "draft a request's fixed K to the letter; else it is an upper bound beside other requests",
    )
    request_timeout_s: float | None = _limit(
        600.0, kinds.optional(kinds.seconds(0.05)), "longest a request may take"
    )
    body_timeout_s: float = _limit(
        30.0,
        kinds.seconds(0.05),
        "longest a client may take to send its headers, and then its body",
    )

    api_keys: tuple[ApiKey, ...] = ()
    open_metrics: bool = _access(
        False, _TRUTH, "answer /metrics without a key (where keys are set)"
    )
    open_page: bool = _access(
        True,
        _TRUTH,
        "show the page without a key; it asks for one and sends it (where keys are set)",
    )
    cors_origins: tuple[str, ...] = _access(
        (), _ORIGINS, "web pages elsewhere that may call the server from a browser"
    )
    allowed_hosts: tuple[str, ...] = _access(
        (),
        _HOSTS,
        "hosts besides this machine's own names and addresses that are answered; with keys and "
        "without this list all are",
    )

    log_format: str = _logs(
        "auto",
        kinds.word("auto", "human", "json"),
        "log lines for people or as JSON; auto: for people on a terminal",
    )
    log_level: str = _logs(
        "info", kinds.word("debug", "info", "warning", "error"), "least important line"
    )
    log_prompts: bool = _logs(False, _TRUTH, "write prompts and answers into the log as well")

    def __post_init__(self) -> None:
        for declared in declared_settings():
            check_value(kind_of(declared), getattr(self, declared.name), declared.name)
        check_keys(self.api_keys)
        _check_engines(self)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.host == "localhost" or is_loopback_address(self.host)

    @property
    def engine_limits(self) -> EngineLimits:
        """What the engine may hold at most."""
        return EngineLimits(**{one.name: getattr(self, one.name) for one in fields(EngineLimits)})


def _check_engines(settings: ServerSettings) -> None:
    """Refuse settings of engines that nothing would read."""

    def given(*names: str) -> str | None:
        return next((name for name in names if getattr(settings, name)), None)

    to_start, drafting = ("engine_command", "engine_args"), ("speculative_args", "head")
    pools = ("engine_url", "speculative_url", "replicas", "speculative_replicas")
    if settings.engine == "local":
        stray = given(*pools, *to_start, "speculative_args", "engine_model", "engine_key_file")
        if stray is not None:
            problem = f"{stray} is about engines in other processes, but engine is local."
            raise RequestError(problem, "Say which kind they are: --engine vllm.")
        return
    num_drafting = settings.speculative_replicas
    for names, kind, num, flag in (
        (to_start, "engines", settings.replicas + num_drafting, "--replicas"),
        (drafting, "drafting engines", num_drafting, "--speculative-replicas"),
    ):
        stray = None if num else given(*names)
        if stray is not None:
            problem = f"{stray} is for {kind} that are started here, and none is."
            raise RequestError(problem, f"Leave {stray} out, or start some: {flag} 1.")


def is_loopback_address(host: str) -> bool:
    """Tell whether a host is an address of this machine alone; a name may stand for anything."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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


def check_value(kind: Kind, value: object, place: str) -> Any:
    """Return a value, read; refuse it with the place it came from."""
    try:
        return kind.read(value)
    except (ValueError, OverflowError):
        raise RequestError(f"{place} is {value!r}.", f"It must be {kind.allowed}.") from None


def check_keys(keys: tuple[ApiKey, ...]) -> None:
    """Refuse API keys that could be mixed up."""
    names: dict[str, str] = {}
    for key in keys:
        if key.key in names:
            problem = f"The API keys {names[key.key]!r} and {key.name!r} are the same key."
            raise RequestError(problem, "Give each its own, or leave one out.")
        if key.name in names.values():
            problem = f"Two API keys are named {key.name!r}."
            raise RequestError(problem, "Give each a name of its own.")
        names[key.key] = key.name
