import sys
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

import http_engine
from headlong.server.served_fleet import start_replicas
from headlong.server.settings import ServerSettings
from tiny_text import byte_level_tokenizer

SCRIPTED = f"{sys.executable} {http_engine.__file__}"


def start(folder: Path, until_end: ExitStack, **settings: object) -> list[tuple[str, int]]:
    wanted = {"engine": "vllm", "engine_command": SCRIPTED, **settings}
    named = ServerSettings(**wanted)  # type: ignore[arg-type]  # any of them
    replicas = start_replicas(folder, byte_level_tokenizer(), named, folder / "logs", until_end)
    return [(one.url, one.num_draft_tokens) for one in replicas]


def test_both_pools_are_started_and_ended(tmp_path: Path) -> None:
    with ExitStack() as until_end:
        drafting = {"speculative_replicas": 1, "speculative_tokens": 3}
        words = "--num-spec-tokens 3"
        started = start(tmp_path, until_end, replicas=2, speculative_args=words, **drafting)
        assert [num for _, num in started] == [0, 0, 3]
        assert all(httpx.get(f"{url}/health", trust_env=False).is_success for url, _ in started)
        logs = {path.name for path in (tmp_path / "logs").iterdir()}
        assert logs == {"plain-1.log", "plain-2.log", "speculative-1.log"}
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{started[0][0]}/health", trust_env=False)


def test_nothing_is_started_unasked(tmp_path: Path) -> None:
    """Some kinds can only be found at addresses."""
    with ExitStack() as until_end:
        assert start(tmp_path, until_end, engine="ollama", engine_command=None) == []
