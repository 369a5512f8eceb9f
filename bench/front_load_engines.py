"""The processes of `front_load.py`: scripted engines to be killed, and the server before them."""

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from headlong.text.tokenizer import Tokenizer, load_tokenizer
from headlong.weights.checkpoint import open_checkpoint
from headlong.weights.sources import resolve_model

SUPPORT = Path(__file__).parent.parent / "tests" / "support"
TOKEN_S = 0.02
"""Seconds of a round."""
SLOW_S = 0.1
"""What the slow engine takes longer for every event of every tenth request."""
START_S = 60
"""How long a process may take until it answers."""

FAULTS: Sequence[Sequence[str]] = (
    (),
    ("--fault", "slow", "--fault-s", f"{SLOW_S}"),
    ("--fault", "garbage"),
)


@dataclass
class Engine:
    """One scripted engine in a process of its own."""

    port: int
    options: Sequence[str]
    num_kills: int = 0
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        command = [sys.executable, str(SUPPORT / "http_engine.py"), "--port", str(self.port)]
        self.process = subprocess.Popen([*command, *self.options])
        _wait_for(self.url)

    def kill(self) -> None:
        """End it at once; it gets no chance to say goodbye."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.num_kills += 1


def scripted_words(model: str | None) -> tuple[Tokenizer, range, Path]:
    """Return a model's tokenizer, the longest run of its tokens that are text, and its file."""
    path = resolve_model(model)
    tokenizer = load_tokenizer(open_checkpoint(path))
    best, begin = range(0), 0
    for token_id in range(tokenizer.vocab_size + 1):
        is_text = token_id < tokenizer.vocab_size and not tokenizer.is_special(token_id)
        if is_text and tokenizer.token_bytes(token_id):
            continue
        best, begin = max(best, range(begin, token_id), key=len), token_id + 1
    return tokenizer, best, path


@contextmanager
def run_engines(words: range, tokenizer: Tokenizer) -> Iterator[list[Engine]]:
    """Run one healthy, one slow and one garbling engine."""
    model = ("--words", f"{words.start}", f"{words.stop}", "--token-s", f"{TOKEN_S}")
    sizes = ("--vocab-size", f"{tokenizer.vocab_size}", "--eos-id", f"{min(tokenizer.eos_ids)}")
    engines = [Engine(_free_port(), (*model, *sizes, *faults)) for faults in FAULTS]
    try:
        for engine in engines:
            engine.start()
        yield engines
    finally:
        for engine in engines:
            engine.kill()


@contextmanager
def run_front(model: Path, urls: Sequence[str]) -> Iterator[tuple[str, psutil.Process]]:
    """Run `headlong serve` before engines; its address and its process."""
    port = _free_port()
    options = [part for url in urls for part in ("--engine-url", url)]
    limits = ["--port", str(port), "--max-running", "512", "--max-waiting", "512"]
    command = [sys.executable, "-m", "headlong", "serve", str(model), "--engine", "vllm"]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([*command, *limits, *options], stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_for(url)
            yield url, psutil.Process(process.pid)
        except TimeoutError:
            log.seek(0)
            sys.stderr.write(log.read().decode()[-2000:])
            raise
        finally:
            process.terminate()
            process.wait(timeout=30)


def _wait_for(url: str) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/health", timeout=1).status_code == httpx.codes.OK:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.05)
    raise TimeoutError(f"Nobody answers at {url}.")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
