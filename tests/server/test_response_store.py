"""Kept responses: the newest ones, each for its own client."""

from headlong.server.response_store import KeptResponse, ResponseStore


def kept(client: str | None = None, num_bytes: int = 10) -> KeptResponse:
    """A response of some size."""
    return KeptResponse(client, {}, [], num_bytes)


def test_oldest_give_way_by_number_and_by_bytes() -> None:
    store = ResponseStore(max_responses=3, max_bytes=100)
    for name in "abcd":
        store.keep(name, kept())
    assert [name for name in "abcd" if store.find(name, None)] == ["b", "c", "d"]
    store.keep("e", kept(num_bytes=95))
    assert [name for name in "abcde" if store.find(name, None)] == ["e"]
    store.keep("f", kept(num_bytes=101))
    assert not any(store.find(name, None) for name in "abcdef")


def test_nobody_sees_another_clients() -> None:
    store = ResponseStore()
    store.keep("a", kept("alice"))
    assert store.find("a", "bob") is None
    assert not store.forget("a", "bob")
    assert store.find("a", "alice") is not None
    assert store.forget("a", "alice")
    assert store.find("a", "alice") is None
