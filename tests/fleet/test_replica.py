"""Replicas: which addresses an engine can have."""

import pytest

from headlong.errors import RequestError
from headlong.fleet.replica import base_url


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("http://10.0.0.5:8000", "http://10.0.0.5:8000"),
        ("http://10.0.0.5:8000/v1/", "http://10.0.0.5:8000"),
        ("https://GPU1.example.org/llm/v1", "https://gpu1.example.org/llm"),
        ("http://[::1]:8000/", "http://[::1]:8000"),
    ],
)
def test_addresses_are_those_that_paths_follow(address: str, url: str) -> None:
    assert base_url(address) == url


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:8000",
        "ftp://127.0.0.1",
        "http://",
        "http://127.0.0.1:port",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:8000=4",
        "http://[::1",
        "http://127.0.0.1:8000/?a=1",
        "http://127.0.0.1:8000/#a",
    ],
)
def test_what_is_no_address_is_refused(address: str) -> None:
    """Some of these ended the health checks with a traceback, and nobody asked again."""
    with pytest.raises(RequestError, match="is none that an engine can have"):
        base_url(address)


@pytest.mark.parametrize("port", ["8000", "99999"])
def test_a_password_in_an_address_is_refused_and_not_shown(port: str) -> None:
    """It would have been shown in logs, metrics and `/health`."""
    with pytest.raises(RequestError) as refusal:
        base_url(f"http://me:secret@127.0.0.1:{port}")
    assert "secret" not in str(refusal.value)
