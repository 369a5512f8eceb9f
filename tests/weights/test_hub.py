"""The real hub client runs here, against a server on this machine."""

import hashlib
import os
import shutil
import time
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants
from huggingface_hub.hf_api import RepoSibling

from fake_hub import COMMIT, FakeHub
from headlong.errors import CheckpointError, DiskFullError, OfflineError, SourceError
from headlong.weights import hub as hub_module
from headlong.weights.hub import pull_hub_model
from headlong.weights.hub_name import HubName, parse_hub_name
from headlong.weights.progress import LogProgress
from headlong.weights.store import StoredFile

WEIGHTS = os.urandom(3_000_000)
FOLDER = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b'{"version": "1.0"}',
    "tokenizer_config.json": b'{"bos_token": "<s>"}',
    "model-00001-of-00002.safetensors": WEIGHTS,
    "model-00002-of-00002.safetensors": b"second",
    "model.safetensors.index.json": b"{}",
    "README.md": b"# words",
    "pytorch_model.bin": b"pickle",
    "consolidated.safetensors": b"the same again",
    "original/params.json": b"{}",
}


class CountingProgress(LogProgress):
    def __init__(self) -> None:
        super().__init__()
        self.total: int | None = None
        self.last = 0

    def begin(self, label: str, total_bytes: int | None, done_bytes: int) -> None:
        self.total = total_bytes

    def update(self, done_bytes: int) -> None:
        self.last = done_bytes


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    fake = FakeHub(
        repos={
            "org/folder": FOLDER,
            "org/ggufs": {"a-Q4_0.gguf": b"GGUF a", "b-Q8_0.gguf": b"GGUF b", "README.md": b""},
            "org/one-gguf": {"only.gguf": b"GGUF only", "README.md": b""},
            "org/pickles": {"pytorch_model.bin": b"pickle", "config.json": b"{}"},
        }
    )
    server = fake.start()
    # The client reads its environment when it is imported, which another test may have caused.
    monkeypatch.setattr(constants, "ENDPOINT", fake.url)
    template = fake.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    yield fake
    server.shutdown()
    server.server_close()


def pull(name: str) -> Path:
    wanted = parse_hub_name(name)
    assert wanted is not None
    return pull_hub_model(wanted, LogProgress()).path


def test_folder_model_comes_with_all_it_needs_and_nothing_else(hub: FakeHub) -> None:
    progress = CountingProgress()
    model = pull_hub_model(HubName("org/folder"), progress)
    names = {file.path.name for file in model.files}
    assert names == set(FOLDER) - {
        "README.md",
        "pytorch_model.bin",
        "consolidated.safetensors",
        "original/params.json",
    }
    assert {path.name for path in model.path.iterdir()} == names
    assert (model.path / "model-00001-of-00002.safetensors").read_bytes() == WEIGHTS
    assert (model.revision, model.licence) == (COMMIT, "apache-2.0")
    assert progress.last == progress.total == model.num_bytes
    assert model.find_damage(rehash=True) is None


def test_folder_model_brings_its_other_chat_templates(hub: FakeHub) -> None:
    hub.repos["org/folder"] = FOLDER | {
        "additional_chat_templates/tool_use.jinja": b"tools",
        "additional_chat_templates/more/deep.jinja": b"no",
    }
    path = pull("org/folder")
    assert (path / "config.json").is_file()
    folder = path / "additional_chat_templates"
    assert [found.name for found in folder.iterdir()] == ["tool_use.jinja"]


def test_second_pull_fetches_no_file_again(hub: FakeHub) -> None:
    first = pull("org/folder")
    hub.requests.clear()
    assert pull("org/folder") == first
    assert [request for request in hub.requests if "resolve" in request] == []


def test_interrupted_pull_keeps_whole_files(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    real = hub_module._check_file

    def press_ctrl_c(path: Path, sibling: RepoSibling) -> StoredFile:
        if path.name == "tokenizer.json":
            raise KeyboardInterrupt
        return real(path, sibling)

    with monkeypatch.context() as patch:
        patch.setattr(hub_module, "_check_file", press_ctrl_c)
        with pytest.raises(KeyboardInterrupt, match="kept; `headlong pull org/folder` goes on"):
            pull("org/folder")
    hub.requests.clear()
    assert (pull("org/folder") / "tokenizer.json").is_file()
    fetched = [request.split("/")[-1] for request in hub.requests if request.startswith("GET org")]
    assert fetched == ["tokenizer_config.json"]


def test_broken_transfer_goes_on_where_it_broke(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 100_000)
    hub.cut_once["model-00001-of-00002.safetensors"] = 1_000_000
    path = pull("org/folder")
    assert (path / "model-00001-of-00002.safetensors").read_bytes() == WEIGHTS
    assert any(request.endswith("bytes=1000000-") for request in hub.requests)


def test_content_that_is_not_what_the_hub_says_is_removed(hub: FakeHub) -> None:
    hub.lying_sha256.add("only.gguf")
    expected = hashlib.sha256(b"something else").hexdigest()
    with pytest.raises(CheckpointError, match=f"instead of {expected}"):
        pull("org/one-gguf")
    hub.lying_sha256.clear()
    assert pull("org/one-gguf").read_bytes() == b"GGUF only"


def test_named_file_is_fetched_alone(hub: FakeHub) -> None:
    assert pull("org/ggufs:b-Q8_0.gguf").read_bytes() == b"GGUF b"
    assert not any("a-Q4_0" in request for request in hub.requests)


def test_only_gguf_file_needs_no_naming(hub: FakeHub) -> None:
    assert pull("org/one-gguf").name == "only.gguf"


def test_several_gguf_files_are_listed_ready_to_type(hub: FakeHub) -> None:
    with pytest.raises(SourceError, match="2 GGUF files") as caught:
        pull("org/ggufs@v1")
    assert "org/ggufs@v1:a-Q4_0.gguf" in caught.value.remedy
    assert "org/ggufs@v1:b-Q8_0.gguf" in caught.value.remedy


def test_absent_file_lists_those_there_are(hub: FakeHub) -> None:
    with pytest.raises(SourceError, match=r"no file 'c\.gguf'") as caught:
        pull("org/ggufs:c.gguf")
    assert "a-Q4_0.gguf, b-Q8_0.gguf" in caught.value.remedy


def test_repository_in_another_format_is_refused(hub: FakeHub) -> None:
    with pytest.raises(SourceError, match="neither safetensors") as caught:
        pull("org/pickles")
    assert "pytorch_model.bin" in caught.value.remedy


def test_gated_repository_says_how_to_get_in(hub: FakeHub) -> None:
    hub.gated.add("org/folder")
    with pytest.raises(SourceError, match="org/folder is gated") as caught:
        pull("org/folder")
    assert "hf auth login" in caught.value.remedy


def test_unknown_repository_and_revision_are_named(hub: FakeHub) -> None:
    with pytest.raises(SourceError, match="no model 'org/nothing'"):
        pull("org/nothing")
    with pytest.raises(SourceError, match="no revision 'v9'"):
        pull("org/folder@v9")


def test_unreachable_hub_counts_as_offline(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(OfflineError, match="cannot be reached") as caught:
        pull("org/folder")
    assert "HF_ENDPOINT" in caught.value.remedy


def test_hub_that_fails_half_way_counts_as_offline(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.is_failing = True
    # The client waits longer and longer between its own attempts.
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with pytest.raises(OfflineError, match="503"):
        pull("org/folder")


def test_offline_mode_is_named(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(OfflineError) as caught:
        pull("org/folder")
    assert "HF_HUB_OFFLINE" in caught.value.remedy


def test_full_disk_is_refused_before_anything_is_fetched(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 0, 1_000_000))
    with pytest.raises(DiskFullError, match="3 MB are needed") as caught:
        pull("org/folder")
    assert "HF_HOME" in caught.value.remedy
    assert not any("resolve" in request for request in hub.requests)


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("org/name", HubName("org/name")),
        ("org/name@v1.1", HubName("org/name", "v1.1")),
        ("org/name:sub/x.gguf", HubName("org/name", None, "sub/x.gguf")),
        ("org/name@main:x.gguf", HubName("org/name", "main", "x.gguf")),
        ("name", None),
        ("a/b/c", None),
        ("/abs/path", None),
        ("org/name:", None),
    ],
)
def test_hub_names_are_read_and_written_alike(name: str, parsed: HubName | None) -> None:
    assert parse_hub_name(name) == parsed
    assert parsed is None or str(parsed) == name
