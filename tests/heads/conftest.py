"""Fixtures for the heads."""

from collections.abc import Callable

import pytest

from headlong.models.transformer import Backbone


@pytest.fixture(scope="session")
def backbone(tiny_backbone: Callable[[str], Backbone]) -> Backbone:
    """A tiny Llama, deep enough for three taps."""
    return tiny_backbone("llama")
