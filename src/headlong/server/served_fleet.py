"""A fleet as a server's settings describe it: which engines there are, and what runs on them.

In:  the model's files, settings. Out: a `ServedModel` whose engines have been found.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from headlong.errors import RequestError
from headlong.fleet.client import FleetModel
from headlong.fleet.dialects import make_dialect
from headlong.fleet.exchange import Patience
from headlong.fleet.fleet import Fleet, FleetOptions
from headlong.fleet.replica import Replica
from headlong.server.served_model import ModelFiles, ServedModel
from headlong.server.settings import ServerSettings
from headlong.text.tokenizer import Tokenizer


def start_fleet(path: Path, settings: ServerSettings, until_end: ExitStack) -> ServedModel:
    """Find the engines that run the model at `path`, and watch them until the end.

    Raises:
        EngineDownError: None answered for too long.
    """
    files = ModelFiles.open(path)
    replicas = tuple(named_replicas(settings, files.tokenizer))
    if not replicas:
        problem = f"The engine is {settings.engine}, but no address of one is given."
        raise RequestError(problem, "Name one: --engine-url http://127.0.0.1:8001.")
    model = FleetModel(files.config.context_length, files.config.vocab_size, files.tokenizer)
    options = FleetOptions(
        settings.engine_model,
        Patience(settings.engine_first_token_s, settings.engine_next_token_s),
        start_s=settings.engine_start_s,
    )
    fleet = Fleet(replicas, model, settings.engine_limits, options)
    until_end.enter_context(fleet)
    return ServedModel.of_fleet(files, fleet.engine)


def named_replicas(settings: ServerSettings, tokenizer: Tokenizer) -> Iterator[Replica]:
    """Yield the engines that the settings name by their addresses."""
    dialect, key = make_dialect(settings.engine, tokenizer), _read_key(settings.engine_key_file)
    depths = dict.fromkeys(settings.engine_url, 0)
    for text in settings.speculative_url:
        url, _, most = text.rpartition("=")
        depths[url] = int(most)
    if len(depths) < len(settings.engine_url) + len(settings.speculative_url):
        raise RequestError("An address of an engine is given twice.", "Leave one out.")
    for url, num_draft_tokens in depths.items():
        # Clients of other kinds want /v1 at the end; all paths here begin with it.
        base = url.rstrip("/").removesuffix("/v1")
        yield Replica(base, dialect, num_draft_tokens, key)


def _read_key(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        problem = f"The key file {path} cannot be read: {reason}."
        raise RequestError(problem, "Check its name and permissions.") from error
