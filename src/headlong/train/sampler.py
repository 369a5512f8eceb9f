"""Sampler: generates many answers at once, with continuous batching.

In:  prompts for free rows. Out: token ids of finished rows.
Each row has its own position. On CUDA one step of all rows is one graph replay. A finished row
idles until it gets a new prompt; other rows do not wait for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headlong.arrays import IntArray
from headlong.ops.torch.attention import AttendRows
from headlong.ops.torch.sequences import (
    Sequences,
    add_channels,
    angles_by_rope,
    run_sequences,
)
from headlong.train.row_states import RowStates
from headlong.train.teacher import Teacher

_PREFILL_TOKENS = 65_536
"""Padded prompt tokens in one prefill pass; bounds the memory of activations."""
_PADDED_LENGTHS = (80, 192, 448)
"""Prompts are grouped by length and padded to one of these lengths."""


@dataclass(frozen=True, slots=True)
class Job:
    """One answer to generate."""

    prompt_ids: IntArray
    max_tokens: int
    temperature: float
    seed: int


class FinishedRow(NamedTuple):
    """What a row has generated."""

    ids: IntArray
    """Prompt and answer."""
    states: Tensor | None = None
    """Hidden rows of all tokens but the last, if recorded: (N - 1, F)."""


class AnswerRows(Protocol):
    """A fixed number of rows, each of which generates one answer at a time."""

    @property
    def num_rows(self) -> int:
        """Number of rows."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the states of all rows."""

    @property
    def note(self) -> str:
        """What computes, for people."""

    def load(self, rows: Sequence[int], jobs: Sequence[Job]) -> None:
        """Load prompts into free rows."""

    def run(self, num_steps: int) -> None:
        """Generate up to `num_steps` tokens in every row that is not done."""

    def finished(self, occupied: Sequence[int]) -> dict[int, FinishedRow]:
        """Return the occupied rows that are done."""


class Sampler:
    """A fixed number of rows, each of which generates one answer at a time."""

    def __init__(
        self,
        teacher: Teacher,
        num_rows: int,
        capacity: int,
        eos_ids: frozenset[int],
        attend: AttendRows,
        note: str = "",
    ) -> None:
        self.note = note
        self.teacher = teacher
        self.num_rows = num_rows
        self.capacity = capacity
        device = teacher.device
        self._states = RowStates(teacher, num_rows, capacity, attend)
        long = {"dtype": torch.long, "device": device}
        self._history = torch.zeros(num_rows, capacity, dtype=torch.int32, device=device)
        self._token = torch.zeros(num_rows, **long)
        self._position = torch.zeros(num_rows, **long)
        self._limit = torch.ones(num_rows, **long)
        self._seed = torch.zeros(num_rows, dtype=torch.int32, device=device)
        self._temperature = torch.zeros(num_rows, device=device)
        self._is_done = torch.ones(num_rows, dtype=torch.bool, device=device)
        self._ends = torch.zeros(teacher.config.vocab_size, dtype=torch.bool, device=device)
        self._ends[sorted(eos_ids)] = True
        self._graph: torch.cuda.CUDAGraph | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of the states and token ids of all rows."""
        return self._states.num_bytes + int(self._history.nbytes)

    @torch.no_grad()
    def load(self, rows: Sequence[int], jobs: Sequence[Job]) -> None:
        """Load prompts into free rows; prompts of similar length are prefilled together."""
        order = sorted(range(len(jobs)), key=lambda i: len(jobs[i].prompt_ids))
        group: list[int] = []
        for place, i in enumerate(order):
            group.append(i)
            longest = _padded(len(jobs[i].prompt_ids), self.capacity)
            is_last = place + 1 == len(order)
            following = longest if is_last else len(jobs[order[place + 1]].prompt_ids)
            is_full = (len(group) + 1) * _padded(following, self.capacity) > _PREFILL_TOKENS
            if is_last or is_full or _padded(following, self.capacity) > longest:
                self._load_group([rows[j] for j in group], [jobs[j] for j in group], longest)
                group = []

    def _load_group(self, rows: list[int], jobs: list[Job], length: int) -> None:
        device = self.teacher.device
        padded = np.zeros((len(jobs), length), dtype=np.int64)
        for line, job in zip(padded, jobs, strict=True):
            line[: len(job.prompt_ids)] = job.prompt_ids
        prompts = torch.from_numpy(padded).to(device)
        where = torch.tensor(rows, device=device)
        sizes = torch.tensor([len(job.prompt_ids) for job in jobs], device=device)
        teacher = self.teacher
        embedded = teacher.embed(prompts)
        per_layer = teacher.per_layer_inputs(prompts, embedded)
        sequences = Sequences(length, per_layer, self._states.loader(where), sizes - 1)
        run_sequences(teacher.ops, embedded, teacher.backbone.layers, sequences)
        # The first step runs the last prompt token again, for its logits.
        self._history[where, :length] = prompts.int()
        self._token[where] = prompts[torch.arange(len(jobs), device=device), sizes - 1]
        self._position[where] = sizes - 1
        limits = [len(job.prompt_ids) + job.max_tokens for job in jobs]
        self._limit[where] = torch.tensor(limits, device=device).clamp(max=self.capacity)
        self._seed[where] = torch.tensor([job.seed for job in jobs], device=device).int()
        self._temperature[where] = torch.tensor([job.temperature for job in jobs], device=device)
        self._is_done[where] = False

    @torch.no_grad()
    def run(self, num_steps: int) -> None:
        """Generate up to `num_steps` tokens in every row that is not done."""
        is_cuda = self.teacher.device.type == "cuda"
        if is_cuda and self.teacher.has_fixed_shapes and self._graph is None:
            self._graph = self._capture()
        for _ in range(num_steps):
            if self._graph is None:
                self._step()
            else:
                self._graph.replay()

    def finished(self, occupied: Sequence[int]) -> dict[int, FinishedRow]:
        """Return the occupied rows that are done."""
        is_done = self._is_done.cpu().numpy()
        rows = [row for row in occupied if is_done[row]]
        if not rows:
            return {}
        where = torch.tensor(rows, device=self.teacher.device)
        history: NDArray[np.int32] = self._history[where].cpu().numpy()
        last = self._position[where].cpu().tolist()
        return {
            row: FinishedRow(line[: end + 1].astype(np.int64))
            for row, line, end in zip(rows, history, last, strict=True)
        }

    def _step(self) -> None:
        """Run every row's newest token and append the next; rows that are done do not change."""
        teacher, ops, layers = self.teacher, self.teacher.ops, self.teacher.backbone.layers
        x = teacher.embed(self._token)
        per_layer = teacher.per_layer_inputs(self._token, x)
        angles = angles_by_rope(ops, self._position, layers)
        lengths = (self._position + 1).int()
        for index, layer in enumerate(layers):
            x = self._states.mix(x, index, angles, self._position, lengths)
            x = add_channels(ops, x, layer, per_layer)
        logits = teacher.logits(ops.norm(x, teacher.backbone.final_norm))
        picked = teacher.pointwise.pick(logits, self._temperature, self._seed, self._position + 1)
        is_alive = ~self._is_done
        token = torch.where(is_alive, picked, self._token)
        self._position.add_(is_alive.long())
        self._token.copy_(token)
        self._history.scatter_(1, self._position[:, None], token[:, None].int())
        has_ended = self._ends[token] | (self._position + 1 >= self._limit)
        self._is_done.logical_or_(has_ended & is_alive)

    def _capture(self) -> "torch.cuda.CUDAGraph":
        """Capture one step as a CUDA graph; the warm-up runs must not change any row."""
        saved = self._is_done.clone()
        self._is_done.fill_(True)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), self._states.preserved():
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step()
        self._is_done.copy_(saved)
        return graph


def _padded(length: int, capacity: int) -> int:
    """Return the length a prompt is padded to."""
    fitting = [size for size in (*_PADDED_LENGTHS, capacity) if size >= length]
    return min(fitting[0] if fitting else capacity, capacity)
