"""Shipped heads: found by their model, in 4 bits, with licences and provenance beside them."""

import json
import shutil
from pathlib import Path

import pytest

from headlong.errors import HeadError
from headlong.heads.fingerprint import fingerprint
from headlong.heads.head_files import read_head_weights
from headlong.heads.shipped_heads import find_shipped_head
from headlong.models.transformer import Backbone
from headlong.weights.catalog import CATALOG
from headlong.weights.head_folders import HEAD_FILES, SHIPPED
from headlong.weights.mlx_groups import PACKED

FOLDERS = sorted(path for path in SHIPPED.iterdir() if path.is_dir())
MOST_BYTES = 64_000_000
"""The index refuses wheels of more than 100 MB."""


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_shipped_head_tells_what_it_is_and_under_which_licences(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == sorted(HEAD_FILES)
    run = json.loads((folder / "run.json").read_text())
    model = next(entry for entry in CATALOG if entry.name == folder.name)
    assert run["model"]["sha256"] == model.sha256
    assert run["licence"] == {"head": "Apache-2.0", "model": model.licence}
    assert len(run["backbone_fingerprint"]) == 64
    readme = (folder / "README.md").read_text()
    assert run["model"]["sha256"] in readme
    assert f"The model it drafts for: {model.licence}." in readme
    assert run["data"]["sets"]
    for name, one in run["data"]["sets"].items():
        assert f"| {name} | {one['answers']:,} | {one['licence']} |" in readme
        assert one["licence"] != "unknown"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_shipped_head_lies_in_four_bits(folder: Path) -> None:
    matrices = [
        tensor for tensor in read_head_weights(folder).tensors.values() if len(tensor.shape) > 1
    ]
    assert matrices
    assert all(tensor.type == PACKED for tensor in matrices)
    assert (folder / "model.safetensors").stat().st_size < MOST_BYTES


def test_pulled_head_is_found_and_a_damaged_one_named(
    backbone: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADLONG_CACHE", str(tmp_path))
    folder = tmp_path / "heads" / "headlong-head-tiny"
    shutil.copytree(FOLDERS[0], folder)
    assert find_shipped_head(backbone) is None
    (folder / "run.json").write_text(json.dumps({"backbone_fingerprint": fingerprint(backbone)}))
    assert find_shipped_head(backbone) == folder
    (folder / "run.json").write_text("{")
    with pytest.raises(HeadError, match="pull the head again"):
        find_shipped_head(backbone)
