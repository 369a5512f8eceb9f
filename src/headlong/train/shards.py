"""Shards: the backbone's answers on disk, in small append-only files that survive a kill.

In:  finished answers. Out: files `shard-00000.npz`, written atomically, and `Answers`, all of them
joined in memory. A damaged shard is reported and skipped as a whole. Recorded hidden rows are in a
file beside each shard (`recorded_states.py`).
"""

import hashlib
import time
import zipfile
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headlong.arrays import IntArray
from headlong.errors import RequestError
from headlong.train.recorded_states import states_file, write_states

SHARD_TOKENS = 6_000_000
"""Tokens in a shard; about 9 MB on disk."""
SHARD_SECONDS = 40.0
"""A shard is also written after this long, so that a kill loses less than a minute."""

_FIELDS = ("ids", "lengths", "prompt_lengths", "temperatures", "sets", "set_names", "next_ask")
_DAMAGE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zipfile.LargeZipFile)


@dataclass(frozen=True, slots=True)
class Answer:
    """A prompt and the backbone's answer."""

    ids: IntArray
    """Prompt and answer."""
    prompt_length: int
    temperature: float
    set_name: str
    states: Tensor | None = None
    """Hidden rows of all tokens but the last, if recorded: (N - 1, F)."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Many answers, joined."""

    ids: NDArray[np.uint32]  # all tokens, one answer after the other
    offsets: IntArray  # (n + 1,)
    prompt_lengths: IntArray  # (n,)
    temperatures: NDArray[np.float32]  # (n,)
    set_counts: dict[str, int]
    fingerprint: str
    """Hash of the token ids."""
    damaged: tuple[str, ...] = ()
    """Shards that could not be read."""
    next_prompt: int = 0
    """Number of the prompt from which a resumed generation continues."""
    shards: tuple[Path, ...] = ()
    """The files that were read."""
    shard_sizes: tuple[int, ...] = ()
    """Number of answers in each."""

    def __len__(self) -> int:
        return len(self.prompt_lengths)

    @property
    def lengths(self) -> IntArray:
        """Tokens of every answer, prompt included."""
        return np.diff(self.offsets)

    @property
    def num_answer_tokens(self) -> int:
        """Tokens that the backbone generated."""
        return int(self.offsets[-1]) - int(self.prompt_lengths.sum())

    def tokens(self, index: int) -> NDArray[np.uint32]:
        """Return the ids of one answer, prompt included."""
        return self.ids[self.offsets[index] : self.offsets[index + 1]]


class ShardWriter:
    """Collects answers and writes them to disk in the background."""

    def __init__(self, folder: Path, state_bytes: int = 0) -> None:
        """Write to a folder; hidden rows of answers may take `state_bytes` there."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._state_bytes = state_bytes
        self._number = 1 + max((_number(path) for path in shard_files(folder)), default=-1)
        self._answers: list[Answer] = []
        self._num_tokens = 0
        self._since = time.monotonic()
        self._pool = ThreadPoolExecutor(1)
        self._pending: Future[None] | None = None

    def add(self, answer: Answer, next_prompt: int) -> None:
        """Add an answer; a resumed generation would continue from `next_prompt`."""
        if answer.states is not None:
            self._state_bytes -= answer.states.nbytes
            if self._state_bytes < 0:
                answer = replace(answer, states=None)
        self._answers.append(answer)
        self._num_tokens += len(answer.ids)
        is_late = time.monotonic() - self._since > SHARD_SECONDS
        if self._num_tokens >= SHARD_TOKENS or is_late:
            self.flush(next_prompt)

    def flush(self, next_prompt: int) -> None:
        """Start writing the collected answers as one shard."""
        self._wait()
        if self._answers:
            path = self._folder / f"shard-{self._number:05}.npz"
            self._pending = self._pool.submit(write_shard, path, self._answers, next_prompt)
            self._number += 1
        self._answers, self._num_tokens, self._since = [], 0, time.monotonic()

    def close(self, next_prompt: int) -> None:
        """Write the last answers and wait for the disk."""
        self.flush(next_prompt)
        self._wait()
        self._pool.shutdown()

    def _wait(self) -> None:
        if self._pending is not None:
            self._pending.result()
            self._pending = None


def write_shard(path: Path, answers: Sequence[Answer], next_prompt: int) -> None:
    """Write a shard to a temporary file and rename it, so that a kill leaves no partial shard."""
    names = sorted({answer.set_name for answer in answers})
    ids = np.concatenate([answer.ids for answer in answers])
    is_small = int(ids.max(initial=0)) < 2**16
    states = [answer.states for answer in answers]
    write_states(states_file(path), states)
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        np.savez_compressed(
            file,
            ids=ids.astype(np.uint16 if is_small else np.uint32),
            lengths=np.array([len(answer.ids) for answer in answers], dtype=np.int32),
            prompt_lengths=np.array([a.prompt_length for a in answers], dtype=np.int32),
            temperatures=np.array([a.temperature for a in answers], dtype=np.float16),
            sets=np.array([names.index(a.set_name) for a in answers], dtype=np.uint16),
            set_names=np.array(names),
            next_ask=np.array(next_prompt),
        )
    part.replace(path)


def shard_files(folder: Path) -> list[Path]:
    """List the shards of a folder in order."""
    return sorted(folder.glob("shard-*.npz"))


def read_shards(folder: Path) -> Answers:
    """Read all undamaged shards of a folder."""
    parts: list[dict[str, NDArray[np.generic]]] = []
    files: list[Path] = []
    damaged: list[str] = []
    digest = hashlib.sha256()
    for path in shard_files(folder):
        try:
            # Opened here: numpy leaves the file open when it is no archive.
            with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                part = {name: stored[name] for name in _FIELDS}
        except _DAMAGE as error:
            damaged.append(f"{path.name}: {error}")
            continue
        if int(part["lengths"].sum()) != len(part["ids"]):
            damaged.append(f"{path.name}: lengths do not add up")
            continue
        digest.update(part["ids"].tobytes())
        parts.append(part)
        files.append(path)
    if not parts:
        reason = f" ({'; '.join(damaged)})" if damaged else ""
        raise RequestError(
            f"There are no answers in {folder}{reason}.", "Run the stage 'generate' first."
        )
    lengths = np.concatenate([part["lengths"] for part in parts]).astype(np.int64)
    counts: dict[str, int] = {}
    for part in parts:
        found = np.bincount(part["sets"].astype(np.int64), minlength=len(part["set_names"]))
        for name, count in zip(part["set_names"].tolist(), found.tolist(), strict=True):
            counts[name] = counts.get(name, 0) + count
    return Answers(
        ids=np.concatenate([part["ids"].astype(np.uint32) for part in parts]),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        prompt_lengths=np.concatenate([p["prompt_lengths"] for p in parts]).astype(np.int64),
        temperatures=np.concatenate([p["temperatures"] for p in parts]).astype(np.float32),
        set_counts=counts,
        fingerprint=digest.hexdigest(),
        damaged=tuple(damaged),
        next_prompt=max(int(part["next_ask"]) for part in parts),
        shards=tuple(files),
        shard_sizes=tuple(len(part["lengths"]) for part in parts),
    )


def _number(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])
