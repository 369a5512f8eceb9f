"""A fleet as a server's settings describe it: which engines there are, and what runs on them.

In:  the model's files, settings. Out: a `ServedModel` whose engines have been found.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from headlong.errors import RequestError
from headlong.fleet.children import Children
from headlong.fleet.client import FleetModel
from headlong.fleet.dialects import make_dialect
from headlong.fleet.engine_commands import EngineWish, plan_engines
from headlong.fleet.exchange import Patience
from headlong.fleet.fleet import Fleet, FleetOptions
from headlong.fleet.probing import ProbeOptions
from headlong.fleet.replica import Replica, base_url
from headlong.server.served_model import ModelFiles, ServedModel
from headlong.server.settings import ServerSettings
from headlong.text.tokenizer import Tokenizer

_KEY = r"[\x21-\x7e]+"
"""What a header carries unharmed."""


def start_fleet(
    path: Path, settings: ServerSettings, log_folder: Path, until_end: ExitStack
) -> ServedModel:
    """Start or find the engines that run the model at `path`, and watch them until the end.

    Raises:
        EngineDownError: One that was started died, or none answered for too long.
    """
    files = ModelFiles.open(path)
    named = named_replicas(settings, files.tokenizer)
    replicas = (*named, *start_replicas(path, files.tokenizer, settings, log_folder, until_end))
    if not replicas:
        problem = f"The engine is {settings.engine}, but none is started, and no address is given."
        remedy = "Start some: --replicas 1; or name one: --engine-url http://127.0.0.1:8001."
        raise RequestError(problem, remedy)
    model = FleetModel(files.config.context_length, files.config.vocab_size, files.tokenizer)
    options = FleetOptions(
        settings.engine_model,
        Patience(settings.engine_first_token_s, settings.engine_next_token_s),
        ProbeOptions(settings.probe_every_s, settings.probe_timeout_s, settings.probe_tokens),
        start_s=settings.engine_start_s,
    )
    fleet = Fleet(replicas, model, settings.engine_limits, options)
    until_end.enter_context(fleet)
    return ServedModel.of_fleet(files, fleet.engine)


def named_replicas(settings: ServerSettings, tokenizer: Tokenizer) -> Iterator[Replica]:
    """Yield the engines that the settings name by their addresses."""
    dialect, key = make_dialect(settings.engine, tokenizer), read_key(settings.engine_key_file)
    addresses = [(url, 0) for url in settings.engine_url]
    for text in settings.speculative_url:
        address, _, num_draft_tokens = text.rpartition("=")
        addresses.append((address, int(num_draft_tokens)))
    depths = dict[str, int]()
    for address, num in addresses:
        url = base_url(address)
        if url in depths:
            raise RequestError(f"The engine at {url} is named twice.", "Leave one out.")
        depths[url] = num
    for url, num in depths.items():
        yield Replica(url, dialect, num, key)


def start_replicas(
    path: Path,
    tokenizer: Tokenizer,
    settings: ServerSettings,
    log_folder: Path,
    until_end: ExitStack,
) -> list[Replica]:
    """Start the engines that the settings ask for, and end them at the end."""
    if not settings.replicas and not settings.speculative_replicas:
        return []
    wish = EngineWish(
        settings.engine,
        path,
        settings.replicas,
        settings.speculative_replicas,
        settings.speculative_tokens,
        settings.engine_command,
        settings.engine_args or "",
        settings.speculative_args or "",
        None if settings.head is None else Path(settings.head),
        log_folder,
    )
    plans = plan_engines(wish)
    until_end.enter_context(Children([plan for plan, _ in plans], settings.engine_start_s))
    dialect = make_dialect(settings.engine, tokenizer)
    return [Replica(plan.url, dialect, num_drafted) for plan, num_drafted in plans]


def read_key(path: str | None) -> str | None:
    """Return the API key in a file, if one is named."""
    if path is None:
        return None
    try:
        key = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        problem = f"The key file {path} cannot be read: {reason}."
        raise RequestError(problem, "Check its name and permissions.") from error
    if re.fullmatch(_KEY, key) is None:
        problem = f"The key file {path} does not hold one key."
        raise RequestError(problem, "Write the key of the engines into it and nothing else.")
    return key
