"""The step runner: prefill and rounds as calls of the op set, made on the host.

For every backend whose blocks can be called one by one. Owns the caches of
all its sequences and restores sequences after a failed pass.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from headlong.decode.draft_backlog import catch_up
from headlong.decode.memory import SPARE_ROWS, CacheMemory
from headlong.decode.new_sequence import make_sampler, make_sequence
from headlong.decode.prefill import PrefillResult, PromptChunk, prefill
from headlong.decode.prefix_search import awaits_prompt
from headlong.decode.recovery import Savepoint, as_engine_error, disable_drafter, restore, save
from headlong.decode.request import Request
from headlong.decode.round import RoundResult, run_round
from headlong.decode.runner import Admission, Faults, MemoryUsage
from headlong.decode.sampling import Sampler
from headlong.decode.sequence import DecodingSequence
from headlong.drafters.draft_plan import DraftPlan
from headlong.drafters.drafter import Drafter
from headlong.errors import HeadlongError
from headlong.models.model_config import ModelConfig
from headlong.models.traffic import cache_traffic
from headlong.models.transformer import Backbone


class StepRunner:
    """Runs sequences block by block; implements `Runner`."""

    def __init__(
        self,
        backbone: Backbone,
        drafter: Drafter | None = None,
        kv_bytes: int | None = None,
        prefix_bytes: int = 0,
        note: str = "",
        faults: Faults | None = None,
    ) -> None:
        """Set up for one model; `kv_bytes` bounds all caches, `prefix_bytes` the kept ones.

        `note` says why a faster runner does not run it; `faults` are those of a device.
        """
        self.backbone = backbone
        self.drafter = drafter
        self.memory = CacheMemory(backbone, drafter, kv_bytes, prefix_bytes)
        self._note = note
        self._faults = faults
        self._traffic = cache_traffic(backbone)
        self._live: list[DecodingSequence] = []  # those with caches, in the order they began

    @property
    def config(self) -> ModelConfig:
        """The shape of the backbone."""
        return self.backbone.config

    @property
    def backend(self) -> str:
        """What computes, in words for people."""
        ops = self.backbone.ops
        return ", ".join(part for part in (ops.name, ops.note, self._note) if part)

    @property
    def max_sequence_tokens(self) -> int:
        """Tokens, prompt and answer, that one request alone can have: the context, or less."""
        return self.memory.max_sequence_tokens

    @property
    def lost(self) -> HeadlongError | None:
        """Why the device cannot be used any more; None while it can."""
        return None if self._faults is None else self._faults.lost

    @property
    def usage(self) -> MemoryUsage:
        """What the caches hold now."""
        memory = self.memory
        return MemoryUsage(
            kv_bytes=self._live_bytes() + memory.prefixes.num_bytes,
            prefix_bytes=memory.prefixes.num_bytes,
            prefix_entries=len(memory.prefixes),
            prefix_hit_tokens=memory.hit_tokens,
            prefix_lookup_tokens=memory.lookup_tokens,
        )

    def make_sequence(self, request: Request) -> DecodingSequence:
        """Return a sequence that waits to begin; refuse parameters that can never work."""
        return make_sequence(
            request, self.config, self.backbone.ops.host, has_drafter=self.drafter is not None
        )

    def begin(self, sequence: DecodingSequence, *, is_idle: bool) -> Admission:
        """Give a sequence its caches, filled with what others have run of its prompt."""
        memory = self.memory
        sequence.plan = DraftPlan(is_idle=is_idle)
        prefix, num_rows = memory.find(sequence, self._live)
        if awaits_prompt(sequence, self._live, num_rows):
            return Admission.DEFERRED
        needed = memory.bytes_to_begin(sequence, prefix, num_rows)
        # Room for what runs already to go on for a while, or the new one is soon preempted.
        if self._live and not memory.has_room(self._live_bytes(SPARE_ROWS) + needed, prefix):
            return Admission.NO_ROOM
        if not self._live and not memory.has_room(needed, prefix):
            prefix, num_rows = None, 0  # alone it fits, once everything kept is gone
            memory.prefixes.clear()
        try:
            memory.begin(sequence, prefix, num_rows)
        except Exception:
            memory.prefixes.clear()  # a kept prefix may be the cause
            raise
        self._live.append(sequence)
        return Admission.BEGUN

    def prefill(self, chunks: Sequence[PromptChunk]) -> list[PrefillResult]:
        """Run the next rows of some prompts in one pass; a failure is in its own result only."""
        saved = [save(chunk.sequence) for chunk in chunks]
        try:
            with self._guard():
                return prefill(chunks, self.backbone, self.drafter)
        except Exception as error:
            sequences = [chunk.sequence for chunk in chunks]
            if not self._recover(sequences, saved, error):
                return [PrefillResult(error=as_engine_error(error))]
        return [result for chunk in chunks for result in self.prefill([chunk])]

    def round(
        self, batch: Sequence[DecodingSequence], plans: Sequence[DraftPlan], max_rows: int
    ) -> list[RoundResult]:
        """Draft, verify, accept and commit; a failure is in its own result only."""
        for sequence, plan in zip(batch, plans, strict=True):
            sequence.plan = plan
        saved = [save(sequence) for sequence in batch]
        try:
            with self._guard():
                return run_round(batch, self.backbone, self.drafter, max_rows)
        except Exception as error:
            if not self._recover(batch, saved, error):
                return [RoundResult(error=as_engine_error(error))]
        alone = zip(batch, plans, strict=True)
        return [result for one, plan in alone for result in self.round([one], [plan], max_rows)]

    def has_room(self, decoding: Sequence[DecodingSequence]) -> bool:
        """Tell whether the next round of these sequences fits into memory beside all others.

        Backlogs take room as well: where it is short, the drafter observes them first.
        """
        if self.memory.kv_bytes is None:
            return True
        while not self.memory.has_room(self._bytes_after(decoding)):
            waiting = [one for one in self._live if one.backlog.num_rows]
            if not waiting:
                return False
            self._catch_up(waiting)
        return True

    def release(self, sequence: DecodingSequence, *, keeps: bool) -> None:
        """Take the caches back; `keeps` them for requests that begin the same way."""
        if sequence in self._live:
            self._live.remove(sequence)
        self.memory.release(sequence, keeps=keeps)

    def cache_share(self, batch: Sequence[DecodingSequence]) -> float:
        """Return what a pass reads of these sequences' caches, as a share of the weights."""
        return self._traffic.share([sequence.cache.length for sequence in batch])

    def clear_prefixes(self) -> None:
        """Forget what ended requests have left."""
        self.memory.prefixes.clear()

    def _guard(self) -> AbstractContextManager[None]:
        return nullcontext() if self._faults is None else self._faults.guard()

    def _make_sampler(self, request: Request) -> Sampler:
        return make_sampler(request, self.config, self.backbone.ops.host)

    def _recover(
        self, batch: Sequence[DecodingSequence], saved: Sequence[Savepoint], error: Exception
    ) -> bool:
        """Restore sequences after a failed pass; return whether to run each again alone.

        One that fails alone is run once more without its drafter: the answer does not need that.
        """
        if len(batch) == 1 and batch[0].draft_state is None:
            return False
        if len(batch) == 1:
            disable_drafter(batch[0], error)
        for sequence, before in zip(batch, saved, strict=True):
            restore(sequence, before, self.drafter, self._make_sampler)
        return True

    def _catch_up(self, batch: Sequence[DecodingSequence]) -> None:
        """Let the drafter observe the backlogs of these sequences; one that fails is given up."""
        assert self.drafter is not None, "rows wait for a drafter only"
        saved = [save(sequence) for sequence in batch]
        try:
            catch_up(self.drafter, batch)
        except Exception as error:
            self._recover(batch, saved, error)
            for sequence in batch if len(batch) > 1 else ():
                self._catch_up([sequence])

    def _live_bytes(self, num_more_rows: int = 0) -> int:
        return sum(self.memory.bytes_of(one, num_more_rows) for one in self._live)

    def _bytes_after(self, decoding: Sequence[DecodingSequence]) -> int:
        """Return the bytes of all sequences after a round of `decoding`."""
        return sum(
            self.memory.bytes_of(one, SPARE_ROWS if one in decoding else 0) for one in self._live
        )
