"""What is written about commands is what they do."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def make_reference() -> ModuleType:
    """The script that writes docs/cli.md."""
    spec = importlib.util.spec_from_file_location("reference", ROOT / "tools/make_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_command_reference_is_fresh(make_reference: ModuleType) -> None:
    written = (ROOT / "docs/cli.md").read_text()
    assert written == make_reference.make_page(), "run `make docs`"


def test_readme_opens_with_what_a_reader_needs() -> None:
    opening = "\n".join((ROOT / "README.md").read_text().splitlines()[:40])
    for needed in ("make demo", "make test", "from headlong import LLM", "| "):
        assert needed in opening, needed


def test_readme_python_runs(default_model_path: Path) -> None:
    """Every Python block of the README runs as written."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        subprocess.run([sys.executable, "-c", block], check=True, timeout=120, cwd=ROOT)


def test_links_in_the_docs_lead_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("name", ["docs/request.md", "docs/add-a-model.md", "CONTRIBUTING.md"])
def test_files_that_the_docs_name_exist(name: str) -> None:
    files = [
        path.relative_to(ROOT)
        for top in ("src", "csrc", "tests")
        for path in (ROOT / top).rglob("*")
    ]
    known = {"/".join(path.parts[first:]) for path in files for first in range(len(path.parts))}
    named = re.findall(r"`([\w/]+\.(?:py|cpp|hpp|toml))`", (ROOT / name).read_text())
    made_up = {"src/headlong/models/minnow.py"}
    missing = {one for one in named if one not in known} - made_up
    assert not missing


def test_every_experiment_has_its_parts_and_a_line_in_the_index() -> None:
    log = ROOT / "docs/log"
    index = (log / "README.md").read_text()
    for page in sorted(log.glob("0*.md")):
        headings = re.findall(r"^## (.+)$", page.read_text(), re.MULTILINE)
        assert headings == ["Question", "Prediction", "Result", "Decision"], page.name
        assert index.count(f"({page.name})") >= 1, page.name


def test_changelog_entries_are_short() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    assert not [line for line in lines if line.startswith("- ") and len(line) > 160]


def test_changelog_names_the_version() -> None:
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert "## Unreleased" in changelog or f"## {version[1]}" in changelog
