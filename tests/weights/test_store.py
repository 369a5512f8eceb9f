import errno
import json
import os
import shutil
import threading
from collections import namedtuple
from pathlib import Path

import pytest

from headlong.errors import DiskFullError, SourceError
from headlong.weights.progress import LogProgress
from headlong.weights.store import (
    Store,
    StoredFile,
    StoredModel,
    cache_dir,
    hash_file,
    require_space,
    storage_errors,
)


def make_model(store: Store, name: str = "tiny", data: bytes = b"weights") -> StoredModel:
    path = store.make_folder(name) / "tiny.gguf"
    path.write_bytes(data)
    model = StoredModel(
        name=name,
        path=path,
        files=(StoredFile(path, len(data), hash_file(path)),),
        source="pypi:tiny==1/tiny.gguf",
        licence="MIT",
        uploader="somebody",
        revision="1",
        pulled_at="2026-01-01T00:00:00+00:00",
    )
    store.record(model)
    return model


def test_cache_folder_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADLONG_CACHE", str(tmp_path))
    assert cache_dir() == tmp_path
    monkeypatch.delenv("HEADLONG_CACHE")
    assert cache_dir().name == "headlong"


def test_recorded_model_is_found_again(tmp_path: Path) -> None:
    model = make_model(Store(tmp_path))
    assert Store(tmp_path).find("tiny") == model
    assert Store(tmp_path).list() == [model]
    assert model.find_damage(rehash=True) is None


def test_cache_can_be_moved_as_a_whole(tmp_path: Path) -> None:
    make_model(Store(tmp_path / "old"))
    shutil.move(tmp_path / "old", tmp_path / "new")
    moved = Store(tmp_path / "new").find("tiny")
    assert moved is not None
    assert moved.path == tmp_path / "new/models/tiny/tiny.gguf"
    assert moved.find_damage(rehash=True) is None


def test_layout_is_readable_by_people(tmp_path: Path) -> None:
    make_model(Store(tmp_path))
    document = json.loads((tmp_path / "models/tiny/source.json").read_text())
    assert document["source"] == "pypi:tiny==1/tiny.gguf"
    assert document["files"][0]["path"] == "tiny.gguf"


def test_damage_is_named(tmp_path: Path) -> None:
    model = make_model(Store(tmp_path))
    model.path.write_bytes(b"WEIGHTS")
    assert model.find_damage() is None
    assert "sha256" in (model.find_damage(rehash=True) or "")
    model.path.write_bytes(b"weig")
    assert "4 bytes instead of 7" in (model.find_damage() or "")
    model.path.unlink()
    assert "is gone" in (model.find_damage() or "")


@pytest.mark.parametrize("text", ["", "{}", '{"name": "tiny", "files": 3}', "\x00\x00"])
def test_unreadable_record_counts_as_absent(tmp_path: Path, text: str) -> None:
    store = Store(tmp_path)
    make_model(store)
    (tmp_path / "models/tiny/source.json").write_text(text)
    assert store.find("tiny") is None
    assert store.list() == []


def test_names_that_share_a_folder_are_not_mixed_up(tmp_path: Path) -> None:
    store = Store(tmp_path)
    make_model(store, "org/name")
    assert store.folder_of("org/name") == store.folder_of("org:name")
    assert store.find("org:name") is None


def test_second_pull_waits_and_says_so(tmp_path: Path) -> None:
    notes: list[str] = []

    class Notes(LogProgress):
        def note(self, text: str) -> None:
            notes.append(text)
            first_may_end.set()

    first_may_end = threading.Event()
    order: list[str] = []

    def pull_second() -> None:
        with Store(tmp_path).lock("tiny", Notes()):
            order.append("second")

    with Store(tmp_path).lock("tiny", LogProgress()):
        second = threading.Thread(target=pull_second)
        second.start()
        assert first_may_end.wait(10)
        order.append("first")
    second.join(10)
    assert order == ["first", "second"]
    assert "another headlong is pulling tiny" in notes[0]


def test_pull_that_brought_nothing_leaves_no_folder(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.lock("tiny", LogProgress()):
        store.make_folder("tiny")
    assert not store.folder_of("tiny").exists()
    with store.lock("tiny", LogProgress()):
        make_model(store)
    assert store.find("tiny") is not None


def test_too_little_space_is_refused_with_both_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 0, 3_000_000))
    require_space(tmp_path / "not/yet/there", 3_000_000)
    with pytest.raises(DiskFullError, match="98 MB are needed") as caught:
        require_space(tmp_path / "not/yet/there", 98_000_000)
    assert "only 3 MB are free" in caught.value.problem
    assert "HEADLONG_CACHE" in caught.value.remedy


def test_disk_that_fills_up_while_writing_is_explained(tmp_path: Path) -> None:
    with pytest.raises(DiskFullError, match="is full"), storage_errors(tmp_path):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_cache_below_a_file_is_refused_with_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceError, match="cannot be used") as caught:
        Store(tmp_path / "file").make_folder("tiny")
    assert "HEADLONG_CACHE" in caught.value.remedy


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_cache_is_refused_with_remedy(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(SourceError, match="Permission denied"):
        Store(tmp_path).make_folder("tiny")


def test_permission_denied_is_explained(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="Permission denied"), storage_errors(tmp_path):
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path))
