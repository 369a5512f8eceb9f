"""A number travels with its conditions."""

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from headlong import provenance
from headlong.provenance import find_checkout, read_provenance


def test_versions_are_those_that_run() -> None:
    found = read_provenance()
    assert found.versions["numpy"] == np.__version__
    assert found.python == ".".join(map(str, sys.version_info[:3]))
    assert found.num_cores >= 1
    assert found.cpu


def test_argv_is_kept_without_the_machine_s_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/some/where/bin/headlong", "demo", "--max-tokens", "8"])
    assert read_provenance().command == "headlong demo --max-tokens 8"


def test_document_survives_json() -> None:
    document = read_provenance().to_dict()
    assert json.loads(json.dumps(document)) == document


def _make_checkout(root: Path) -> Path:
    """Lay out a checkout with one commit and return the source file in it."""
    source = root / "src" / "headlong" / "provenance.py"
    source.parent.mkdir(parents=True)
    source.write_text("")
    (root / "pyproject.toml").write_text("")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(root), *command], check=True, capture_output=True)
    return source


def test_checkout_tells_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = _make_checkout(tmp_path)
    monkeypatch.setattr(provenance, "__file__", str(source))
    clean = read_provenance()
    assert clean.commit is not None
    assert len(clean.commit) == 40
    assert clean.commit[:10] in clean.summary
    assert not clean.has_local_changes
    source.write_text("changed")
    changed = read_provenance()
    assert changed.commit == clean.commit
    assert changed.has_local_changes
    assert "local changes" in changed.summary


def test_installed_package_claims_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A virtual environment inside somebody else's checkout must not report their commit."""
    _make_checkout(tmp_path / "theirs")
    installed = tmp_path / "theirs" / ".venv" / "lib" / "headlong" / "provenance.py"
    monkeypatch.setattr(provenance, "__file__", str(installed))
    assert find_checkout(installed) is None
    assert read_provenance().commit is None


def test_unpacked_archive_claims_no_commit(tmp_path: Path) -> None:
    """Source without its own .git, laid down inside another checkout, is not that checkout's."""
    _make_checkout(tmp_path / "theirs")
    unpacked = tmp_path / "theirs" / "headlong-0.1.0"
    source = unpacked / "src" / "headlong" / "provenance.py"
    source.parent.mkdir(parents=True)
    (unpacked / "pyproject.toml").write_text("")
    assert find_checkout(source) is None


def test_missing_package_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "PACKAGES", ("no-such-package",))
    assert read_provenance().versions["no-such-package"] == "not installed"


def test_the_version_of_a_backend_in_use_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    assert "triton" not in read_provenance().versions
    monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))
    assert "triton" in read_provenance().versions
