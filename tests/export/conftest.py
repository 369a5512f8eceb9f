"""Fixtures for exports."""

import pytest

from export_parts import Pair, write_pair


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A tiny model and a head for it."""
    return write_pair(tmp_path_factory.mktemp("export"))
