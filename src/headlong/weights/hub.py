"""Models of the Hugging Face hub.

In:  a `HubName`.
Out: the files in the hub client's own cache (shared with other tools), each with its sha256.
Endpoint, token, cache folder and offline mode are the client's own settings (HF_ENDPOINT, HF_TOKEN,
HF_HOME, HF_HUB_OFFLINE). Knows nothing of what the files mean.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import cast

import huggingface_hub
from huggingface_hub import constants, errors
from huggingface_hub.hf_api import ModelInfo, RepoSibling
from huggingface_hub.utils.tqdm import (
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
)

from headlong.errors import CheckpointError, OfflineError, SourceError
from headlong.weights.hub_name import HubName
from headlong.weights.progress import Progress, watched
from headlong.weights.store import (
    StoredFile,
    StoredModel,
    hash_file,
    now,
    require_space,
    storage_errors,
)

_FOLDER_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer*.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.*",
    "additional_chat_templates/*.jinja",
    "*.safetensors",
    "*.safetensors.index.json",
)
_CACHE_VARIABLE = "HF_HOME"
# The client raises its HTTP library's errors bare, and which library that is changes between
# versions; the parent of the client's own HTTP error belongs to it.
_HTTP_ERROR = cast(type[Exception], errors.HfHubHTTPError.__bases__[0])


def pull_hub_model(wanted: HubName, progress: Progress) -> StoredModel:
    """Bring files that are not here yet; the caller holds the model's lock and records it."""
    try:
        return _pull(wanted, progress)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            "Stopped. Files that had arrived completely are kept; "
            f"`headlong pull {wanted}` goes on from there."
        ) from None


def _pull(wanted: HubName, progress: Progress) -> StoredModel:
    cache = Path(constants.HF_HUB_CACHE)
    with _hub_errors(wanted), storage_errors(cache, _CACHE_VARIABLE):
        info = huggingface_hub.HfApi().model_info(
            wanted.repo, revision=wanted.revision, files_metadata=True
        )
        commit = info.sha or "main"
        siblings = _choose_files(wanted, info)
        total = sum(sibling.size or 0 for sibling in siblings)
        absent = (s for s in siblings if not _is_cached(wanted.repo, s.rfilename, commit))
        require_space(cache, sum(sibling.size or 0 for sibling in absent), _CACHE_VARIABLE)
        progress.begin(str(wanted), total, 0)
        blobs = cache / f"models--{wanted.repo.replace('/', '--')}" / "blobs"
        files: list[StoredFile] = []

        def count_bytes() -> int:
            """Return the bytes of finished files and of those that the client is writing."""
            growing = sum(map(_written_bytes, blobs.glob("*.incomplete")))
            return sum(file.num_bytes for file in files) + growing

        with _without_own_bars(), watched(count_bytes, progress):
            for sibling in siblings:
                name = sibling.rfilename
                path = huggingface_hub.hf_hub_download(wanted.repo, name, revision=commit)
                files.append(_check_file(Path(path), sibling))
        progress.update(count_bytes())
    config = next((file.path for file in files if file.path.name == "config.json"), None)
    return StoredModel(
        name=str(wanted),
        path=config.parent if config else files[0].path,
        files=tuple(files),
        source=f"hub:{wanted.repo}@{commit}",
        licence=next((tag[8:] for tag in info.tags or [] if tag.startswith("license:")), "unknown"),
        uploader=wanted.repo.split("/")[0],
        revision=commit,
        pulled_at=now(),
    )


def _choose_files(wanted: HubName, info: ModelInfo) -> list[RepoSibling]:
    """Return what to fetch: the named file, the model folder, or the only GGUF file."""
    siblings = {sibling.rfilename: sibling for sibling in info.siblings or []}
    ggufs = sorted(name for name in siblings if name.endswith(".gguf"))
    if wanted.file is not None:
        if wanted.file not in siblings:
            listed = ", ".join(ggufs or sorted(siblings)[:12]) or "no files at all"
            raise SourceError(f"{wanted.repo} has no file {wanted.file!r}.", f"It has: {listed}.")
        return [siblings[wanted.file]]
    folder = [name for name in siblings if _is_model_file(name)]
    if "config.json" in folder and any(name.endswith(".safetensors") for name in folder):
        return [siblings[name] for name in sorted(folder)]
    if len(ggufs) == 1:
        return [siblings[ggufs[0]]]
    if ggufs:
        listed = "".join(f"\n    {wanted}:{name}" for name in ggufs)
        problem = f"{wanted.repo} holds {len(ggufs)} GGUF files, each a whole model."
        raise SourceError(problem, f"Name one of them:{listed}")
    listed = ", ".join(sorted(siblings)[:12]) or "nothing"
    raise SourceError(
        f"{wanted.repo} holds neither safetensors with a config.json nor a GGUF file.",
        f"It holds: {listed}. Choose a repository in one of the two formats.",
    )


def _is_model_file(name: str) -> bool:
    # `consolidated*` repeats the weights under the maker's own tensor names.
    if name.startswith("consolidated"):
        return False
    # A star of fnmatch crosses folders; here it does not.
    folder, _, file = name.rpartition("/")
    patterns = (pattern.rpartition("/") for pattern in _FOLDER_FILES)
    return any(folder == place and fnmatch(file, pattern) for place, _, pattern in patterns)


def _is_cached(repo: str, file: str, commit: str) -> bool:
    return isinstance(huggingface_hub.try_to_load_from_cache(repo, file, revision=commit), str)


def _check_file(path: Path, sibling: RepoSibling) -> StoredFile:
    """Hash a file that has arrived; refuse and remove it when the hub says it should be another."""
    expected = sibling.lfs.sha256 if sibling.lfs else None
    found = hash_file(path)
    size = path.stat().st_size
    if expected is not None and found != expected:
        path.resolve().unlink()
        path.unlink(missing_ok=True)
        raise CheckpointError(
            f"{sibling.rfilename} came with sha256 {found} ({size:,} bytes) instead of "
            f"{expected} ({sibling.size or 0:,} bytes). It was removed.",
            "Run the same command again.",
        )
    return StoredFile(path, size, found)


def _written_bytes(path: Path) -> int:
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0  # it has just become complete
    # A client may write out of order into a file of full length; blocks tell what is really there.
    return min(status.st_size, getattr(status, "st_blocks", status.st_size) * 512)


@contextmanager
def _without_own_bars() -> Iterator[None]:
    """Silence the client's progress bars: ours counts the same bytes."""
    if are_progress_bars_disabled() or constants.HF_HUB_DISABLE_PROGRESS_BARS is False:
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


@contextmanager
def _hub_errors(wanted: HubName) -> Iterator[None]:
    """Turn the client's errors into refusals with a remedy."""
    try:
        yield
    except errors.GatedRepoError as error:
        raise SourceError(
            f"{wanted.repo} is gated: its makers ask you to accept their terms first.",
            "Accept them on the model's page of the hub, then log in here with `hf auth login`.",
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise SourceError(
            f"The hub has no model {wanted.repo!r} that you may see.",
            "Check the spelling (nothing of that name lies here either); if it is private, log in "
            "with `hf auth login`.",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise SourceError(
            f"{wanted.repo} has no revision {wanted.revision!r}.",
            "Name a branch, a tag or a commit of it, or leave @REVISION out.",
        ) from error
    except errors.HFValidationError as error:
        raise SourceError(
            f"{wanted.repo!r} is no hub name: {error}", "Write it as ORG/NAME."
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise _offline(wanted, error.__cause__ or error) from error
    except errors.EntryNotFoundError as error:
        raise SourceError(
            f"A file of {wanted.repo} has gone from the hub: {_first_line(error)}",
            "Run the same command again; the repository may just have changed.",
        ) from error
    except errors.HfHubHTTPError as error:
        raise SourceError(
            f"The hub refused {wanted}: {_first_line(error)}",
            "Try again later; if it asks for permission, log in with `hf auth login`.",
        ) from error
    except (_HTTP_ERROR, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk, not the net
        raise _offline(wanted, error) from error


def _offline(wanted: HubName, error: BaseException) -> OfflineError:
    return OfflineError(
        f"The hub at {constants.ENDPOINT} cannot be reached for {wanted}: {_first_line(error)}",
        "Check the connection and the HF_ENDPOINT and HF_HUB_OFFLINE settings, then run the same "
        f"command again. If you meant a local path: there is no {wanted.repo!r} here.",
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
