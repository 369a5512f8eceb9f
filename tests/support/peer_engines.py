"""Real engines of other projects, started for a test: vLLM's CPU build and llama.cpp's server.

`bench/setup_peers.sh` brings them; the environment variable HEADLONG_PEERS names its folder.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

START_S = 300.0
K = 4
"""Draft tokens of the engines that draft."""

_DRAFTS = '{"method": "eagle3", "model": "HEAD", "num_speculative_tokens": K}'
_VLLM = ("--dtype", "float32", "--enforce-eager", "--max-model-len", "2048")
_FORMS = ("--structured-outputs-config.backend", "guidance")
_TELLS = ("--enable-prompt-tokens-details",)


def peers_folder() -> Path:
    """Return where the engines are; skip the test where nobody has set them up."""
    named = os.environ.get("HEADLONG_PEERS")
    if not named:
        pytest.skip("HEADLONG_PEERS names no folder; bench/setup_peers.sh makes one")
    return Path(named)


@contextmanager
def vllm_server(backbone: Path, head: Path | None = None) -> Iterator[str]:
    """Run vLLM on an exported backbone, drafting with a head if there is one; yield its URL."""
    arguments = ["--model", str(backbone), *_VLLM, *_FORMS, *_TELLS]
    if head is not None:
        drafts = _DRAFTS.replace("HEAD", str(head)).replace("K", str(K))
        arguments += ["--speculative-config", drafts]
        arguments += ["--per-request-spec-decode-metrics", "detailed"]
    with _running("vllm-server", *arguments) as url:
        yield url


@contextmanager
def llama_server(backbone: Path, head: Path | None = None) -> Iterator[str]:
    """Run llama.cpp's server on a GGUF file, drafting with a head if there is one."""
    arguments = ["--model", str(backbone), "--ctx-size", "4096", "--parallel", "2", "--metrics"]
    if head is not None:
        arguments += ["--model-draft", str(head), "--spec-type", "draft-eagle3"]
        arguments += ["--spec-draft-n-max", str(K)]
    with _running("llama-server", *arguments) as url:
        yield url


@contextmanager
def _running(name: str, *arguments: str) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(peers_folder() / name), *arguments, "--host", "127.0.0.1", "--port", str(port)]
    # A session of its own: vLLM is three processes, and none may outlive the test.
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(process, url)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait(process: subprocess.Popen[bytes], url: str) -> None:
    deadline_s = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline_s:
        try:
            if httpx.get(f"{url}/health").status_code == httpx.codes.OK:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    pytest.fail(f"{url} did not begin to answer")
