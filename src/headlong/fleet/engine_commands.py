"""Engine commands: how each kind of engine is started as a child of this process.

In:  a model's files, how many engines, what their user wants of them. Out: a `ChildPlan` for each.
Addresses, names and what the front reads are given here; everything else is the user's, passed on
as it is.
"""

import json
import os
import shlex
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headlong.errors import RequestError
from headlong.fleet.children import ChildPlan
from headlong.provenance import num_usable_cores

HOST = "127.0.0.1"

_DEVICES = "CUDA_VISIBLE_DEVICES"
_OWN = "HEADLONG_"
"""How variables of ours begin: an engine has no business with our API keys."""


@dataclass(frozen=True, slots=True)
class EngineWish:
    """Which engines are to be started."""

    kind: str
    """As `--engine` names it."""
    model: Path
    num_plain: int
    num_drafting: int
    num_draft_tokens: int
    """K of those that draft."""
    command: str | None = None
    """The program with its first arguments; None for the usual one of this kind."""
    arguments: str = ""
    """Further ones of every engine."""
    drafting_arguments: str = ""
    """Further ones of those that draft."""
    head: Path | None = None
    """An EAGLE-3-format head in the engine's own form; None where the arguments name one."""
    log_folder: Path = field(default_factory=Path)
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


@dataclass(frozen=True, slots=True)
class _Kind:
    """How one kind of engine is started."""

    command: tuple[str, ...]
    arguments: Callable[[str, int], list[str]]
    """Of any one, by model and port."""
    health_path: str = "/health"
    drafting: Callable[[str, int], list[str]] = lambda head, num: []
    """Of one that drafts, by head and K."""


def _vllm(model: str, port: int) -> list[str]:
    ours = ["--structured-outputs-config.backend", "guidance", "--enable-prompt-tokens-details"]
    return ["--model", model, "--host", HOST, "--port", str(port), *ours]


def _vllm_drafting(head: str, num: int) -> list[str]:
    config = {"method": "eagle3", "model": head, "num_speculative_tokens": num}
    return ["--speculative-config", json.dumps(config)]


def _llama(model: str, port: int) -> list[str]:
    return ["-m", model, "--host", HOST, "--port", str(port), "--metrics"]


def _llama_drafting(head: str, num: int) -> list[str]:
    return ["-md", head, "--spec-type", "draft-eagle3", "--spec-draft-n-max", str(num)]


def _sglang(model: str, port: int) -> list[str]:
    return ["--model-path", model, "--host", HOST, "--port", str(port), "--enable-metrics"]


def _sglang_drafting(head: str, num: int) -> list[str]:
    names = ("algorithm", "draft-model-path", "num-steps", "eagle-topk", "num-draft-tokens")
    values = ("EAGLE3", head, str(num), "1", str(num + 1))
    pairs = zip(names, values, strict=True)
    return [word for name, value in pairs for word in (f"--speculative-{name}", value)]


_KINDS = {
    "vllm": _Kind(
        (sys.executable, "-m", "vllm.entrypoints.openai.api_server"), _vllm, drafting=_vllm_drafting
    ),
    "llama.cpp": _Kind(("llama-server",), _llama, drafting=_llama_drafting),
    "sglang": _Kind(
        (sys.executable, "-m", "sglang.launch_server"), _sglang, drafting=_sglang_drafting
    ),
}


def plan_engines(wish: EngineWish) -> list[tuple[ChildPlan, int]]:
    """Return how each engine is started, those without drafts first, with its K.

    Raises:
        RequestError: Engines of this kind cannot be started, or not like this.
    """
    _check(wish)
    ports = _free_ports(wish.num_plain + wish.num_drafting)
    environs = _share_devices(wish.environ, len(ports))
    plans = []
    for place, (port, environ) in enumerate(zip(ports, environs, strict=True)):
        number = place - wish.num_plain
        drafts = number >= 0
        name = f"speculative-{number + 1}" if drafts else f"plain-{place + 1}"
        plan = ChildPlan(
            name,
            _command(wish, port, drafts=drafts),
            f"http://{HOST}:{port}",
            _KINDS[wish.kind].health_path,
            wish.log_folder / f"{name}.log",
            environ,
        )
        plans.append((plan, wish.num_draft_tokens if drafts else 0))
    return plans


def _command(wish: EngineWish, port: int, *, drafts: bool) -> list[str]:
    kind = _KINDS[wish.kind]
    command = list(kind.command)
    if wish.command is not None:
        command = _words("engine_command", wish.command)
    command += kind.arguments(str(wish.model), port)
    num_engines = wish.num_plain + wish.num_drafting
    if wish.kind == "llama.cpp" and num_engines > 1:
        # Each would take all cores, and its threads spin while they wait for each other.
        command += ["--threads", str(max(1, num_usable_cores() // num_engines))]
    command += _words("engine_args", wish.arguments)
    if not drafts:
        return command
    if wish.kind == "vllm":
        command += ["--per-request-spec-decode-metrics", "detailed"]
    if wish.head is not None:
        command += kind.drafting(str(wish.head), wish.num_draft_tokens)
    return command + _words("speculative_args", wish.drafting_arguments)


def _words(setting: str, text: str) -> list[str]:
    """Return the words of a command line, as a shell reads them."""
    try:
        return shlex.split(text)
    except ValueError as error:
        problem = f"{setting} is {text!r}, which is no command line: {error}."
        raise RequestError(
            problem, "Close every quote, and put \\ before one that is meant."
        ) from None


def _check(wish: EngineWish) -> None:
    if wish.kind not in _KINDS:
        problem = f"Engines of the kind {wish.kind} cannot be started from here."
        raise RequestError(problem, "Start them yourself and name them with --engine-url.")
    if wish.num_drafting and wish.head is None and not wish.drafting_arguments:
        raise RequestError(
            "Engines are to draft, but nothing says with what.",
            "Name a head with --head, or give the engine's own options: --speculative-args.",
        )
    _check_form(wish, "model", wish.model, "--backbone")
    if wish.num_drafting and wish.head is not None:
        _check_form(wish, "head", wish.head, f"--model {wish.model}")


def _check_form(wish: EngineWish, what: str, path: Path, options: str) -> None:
    """Refuse a model or head that is not there, or not as this kind of engine reads it."""
    if not path.exists():
        raise RequestError(f"There is no {what} at {path}.", "Check the spelling of the path.")
    remedy = f"Write one that it does: headlong export OUT --to {wish.kind} {options}."
    is_gguf = path.suffix == ".gguf"
    if wish.kind == "llama.cpp" and not is_gguf:
        raise RequestError(f"llama.cpp reads GGUF files; the {what} {path} is none.", remedy)
    if wish.kind != "llama.cpp" and is_gguf:
        problem = f"{wish.kind} reads Hugging Face folders; the {what} {path} is a GGUF file."
        raise RequestError(problem, remedy)


def _free_ports(num: int) -> list[int]:
    """Return ports that nobody listens at."""
    listeners = [socket.socket() for _ in range(num)]
    try:
        for listener in listeners:  # all at once, or one would be given twice
            listener.bind((HOST, 0))
        return [listener.getsockname()[1] for listener in listeners]
    finally:
        for listener in listeners:
            listener.close()


def _share_devices(environ: Mapping[str, str], num: int) -> list[dict[str, str]]:
    """Return the environment of each engine; several devices are shared out among them."""
    shared = {name: value for name, value in environ.items() if not name.startswith(_OWN)}
    devices = [device for device in shared.get(_DEVICES, "").split(",") if device]
    if len(devices) < 2:
        return [dict(shared) for _ in range(num)]
    each = max(1, len(devices) // num)
    starts = [place * each % len(devices) for place in range(num)]
    return [{**shared, _DEVICES: ",".join(devices[at : at + each])} for at in starts]
