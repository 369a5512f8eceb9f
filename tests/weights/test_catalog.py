import re

import pytest

from headlong.weights.catalog import CATALOG, DEFAULT_MODEL, find_entry, find_near_names
from headlong.weights.store import Store


@pytest.mark.parametrize("entry", CATALOG, ids=lambda entry: entry.name)
def test_every_entry_is_complete_and_pinned(entry: object) -> None:
    found = next(known for known in CATALOG if known is entry)
    assert re.fullmatch(r"[0-9a-f]{64}", found.sha256 or "")
    assert (found.num_bytes or 0) > (found.download_bytes or 0) > 0
    assert found.licence != "unknown"
    assert found.uploader != "unknown"
    assert found.file_name.endswith(".gguf")
    assert len({str(part) for part in found.parts}) == len(found.parts)


def test_names_and_aliases_are_unique() -> None:
    words = [word for entry in CATALOG for word in (entry.name, *entry.aliases)]
    assert len(set(words)) == len(words)
    assert len({Store().folder_of(entry.name) for entry in CATALOG}) == len(CATALOG)


def test_alias_leads_to_the_entry() -> None:
    entry = find_entry("SmolLM2")
    assert entry is not None
    assert entry.name == DEFAULT_MODEL
    assert find_entry("smollm") is None


def test_slip_leads_to_the_near_name() -> None:
    assert find_near_names("smolm2")[0] == DEFAULT_MODEL
    assert find_near_names("gema-3-270m") == ["gemma-3-270m"]
    assert find_near_names("zzzz") == []


def test_third_party_uploads_are_never_the_default() -> None:
    default = find_entry(DEFAULT_MODEL)
    assert default is not None
    assert default.uploader != "third party"
