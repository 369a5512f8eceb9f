from dataclasses import fields
from typing import Any

import pytest

from headlong.engine.limits import EngineLimits
from headlong.errors import RequestError
from headlong.server.settings import ApiKey, ServerSettings, declared_settings


def test_defaults_keep_the_server_to_this_machine() -> None:
    settings = ServerSettings()
    assert settings.host == "127.0.0.1"
    assert settings.is_loopback
    assert not settings.log_prompts
    assert settings.cors_origins == ()


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [
        ("localhost", True),
        ("::1", True),
        ("127.8.9.1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.2", False),
        ("example.org", False),
    ],
)
def test_only_loopback_counts_as_this_machine(host: str, is_loopback: bool) -> None:
    assert ServerSettings(host=host).is_loopback is is_loopback


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", 70_000),
        ("max_running", 0),
        ("mtp", 99),
        ("log_format", "xml"),
        ("host", "a b"),
        ("request_timeout_s", 0.0),
        ("cors_origins", ("example.org",)),
        ("drafter", "oracle"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(RequestError) as refusal:
        ServerSettings(**{name: value})  # type: ignore[arg-type]  # wrong on purpose
    assert name in refusal.value.problem
    assert repr(value) in refusal.value.problem
    assert refusal.value.remedy.startswith("It must be")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"replicas": 1}, "replicas is about engines in other processes, but engine is local"),
        ({"engine_key_file": "key"}, "engine_key_file is about engines in other processes"),
        ({"engine": "vllm", "engine_args": "--seed 3"}, "engine_args is for engines that are st"),
        ({"engine": "vllm", "head": "head"}, "head is for drafting engines that are started"),
        ({"engine": "vllm", "replicas": 1, "speculative_args": "-x"}, "speculative_args is for"),
    ],
)
def test_settings_that_no_engine_would_read_are_refused(
    given: dict[str, Any], problem: str
) -> None:
    """A head beside the address of an engine was ignored without a word."""
    with pytest.raises(RequestError, match=problem):
        ServerSettings(**given)


def test_settings_of_engines_that_are_started_are_accepted() -> None:
    ServerSettings(engine="vllm", replicas=1, engine_args="--seed 3")
    ServerSettings(engine="vllm", speculative_replicas=1, engine_command="x", head="head")


def test_two_keys_may_not_be_mixed_up() -> None:
    with pytest.raises(RequestError, match="'a' and 'b' are the same key"):
        ServerSettings(api_keys=(ApiKey("same-same", "a"), ApiKey("same-same", "b")))
    with pytest.raises(RequestError, match="named 'a'"):
        ServerSettings(api_keys=(ApiKey("one-secret", "a"), ApiKey("two-secret", "a")))


def test_a_key_does_not_show_itself() -> None:
    assert "hush-hush" not in repr(ServerSettings(api_keys=(ApiKey("hush-hush", "me"),)))


def test_engine_limits_are_all_settings() -> None:
    """A bound of the engine that nobody can set would be a secret."""
    names = {one.name for one in fields(EngineLimits)}
    assert names <= {declared.name for declared in declared_settings()}
    changed = ServerSettings(max_running=3, kv_bytes=2**20, prefix_bytes=0).engine_limits
    assert (changed.max_running, changed.kv_bytes, changed.prefix_bytes) == (3, 2**20, 0)
