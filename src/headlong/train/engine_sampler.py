"""Engine sampler: generates answers with Headlong's own engine, as decoding does on this machine.

In:  prompts for free rows. Out: token ids of finished rows, and their hidden rows if recorded.
On a CPU the native kernels generate several times as fast as torch, and read the weights as packed.
"""

from collections.abc import Sequence

import numpy as np

from headlong.arrays import IntArray
from headlong.config import SamplingParams, StopParams
from headlong.decode.request import Request
from headlong.engine.client import EngineClient, TokenStream
from headlong.train.recorder import StateRecorder
from headlong.train.sampler import FinishedRow, Job

MAX_ROWS = 64
"""More rows than this are no faster on a CPU."""


class EngineSampler:
    """A fixed number of rows, each of which generates one answer at a time."""

    def __init__(
        self,
        engine: EngineClient,
        num_rows: int,
        eos_ids: frozenset[int],
        recorder: StateRecorder | None = None,
    ) -> None:
        """Set up; a `recorder` is the engine's drafter, and the engine honours a fixed K."""
        self.num_rows = num_rows
        self._recorder = recorder
        self.note = f"{engine.backend} backend"
        self._engine = engine
        self._eos_ids = eos_ids
        self._streams: dict[int, tuple[Job, TokenStream]] = {}

    @property
    def num_bytes(self) -> int:
        """Bytes of the caches of all rows."""
        return self._engine.snapshot().kv_bytes

    def load(self, rows: Sequence[int], jobs: Sequence[Job]) -> None:
        """Load prompts into free rows and prefill them; other rows go on meanwhile."""
        loaded = [self._engine.submit(self._request(job)) for job in jobs]
        self._streams |= dict(zip(rows, zip(jobs, loaded, strict=True), strict=True))
        while any(not one.num_ready and one.finish_reason is None for one in loaded):
            self._engine.step()

    def run(self, num_steps: int) -> None:
        """Generate up to `num_steps` tokens in every row that is not done."""
        for _ in range(num_steps):
            if self._engine.num_running:
                self._engine.step()

    def finished(self, occupied: Sequence[int]) -> dict[int, FinishedRow]:
        """Return the occupied rows that are done."""
        done = [row for row in occupied if self._streams[row][1].finish_reason is not None]
        found: dict[int, FinishedRow] = {}
        for row in done:
            ids = _all_ids(*self._streams.pop(row))
            states = None if self._recorder is None else self._recorder.take(ids)
            found[row] = FinishedRow(ids, states)
        return found

    def _request(self, job: Job) -> Request:
        return Request(
            prompt_ids=tuple(job.prompt_ids.tolist()),
            sampling=SamplingParams(temperature=job.temperature, seed=job.seed),
            stopping=StopParams(max_tokens=job.max_tokens),
            # A recorder only observes the rows of requests that want drafts.
            mtp="off" if self._recorder is None else 1,
            eos_ids=self._eos_ids,
        )


def _all_ids(job: Job, stream: TokenStream) -> IntArray:
    """Return the prompt and the answer of a request that has ended."""
    if stream.error is not None:
        raise stream.error
    answer = [emitted.pick.token_id for emitted in stream.take()]
    return np.array([*job.prompt_ids.tolist(), *answer], dtype=np.int64)
