"""The device runner: whole rounds on one device; implements `Runner`.

Owns slots, pages and tensors of all its sequences. What the device does in a round is
`decode/device/round.py`; how rounds follow one another, `decode/device/rounds.py`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from headlong.cache.page_pool import PagePool
from headlong.decode.device.faults import DeviceFaults, DeviceMemoryError
from headlong.decode.device.head import DeviceHead
from headlong.decode.device.lanes import table_width
from headlong.decode.device.memory import count_pages, empty_device_cache
from headlong.decode.device.prefill import DevicePrefill
from headlong.decode.device.round import DeviceRound
from headlong.decode.device.rounds import DeviceRounds
from headlong.decode.device.tensors import DeviceTensors
from headlong.decode.new_sequence import make_sampler, make_sequence
from headlong.decode.page_memory import ROOM_ROWS, PageMemory, pages_of_context, state_of
from headlong.decode.prefill import PrefillResult, PromptChunk
from headlong.decode.recovery import as_engine_error, restore, save
from headlong.decode.request import Request
from headlong.decode.round import RoundResult
from headlong.decode.runner import Admission, MemoryUsage, RunnerBounds
from headlong.decode.sampling import Sampler
from headlong.decode.sequence import DecodingSequence
from headlong.drafters.draft_plan import DraftPlan
from headlong.drafters.drafter import DraftState
from headlong.drafters.ngram import NgramDrafter
from headlong.errors import HeadlongError
from headlong.heads.layer_head import LayerHead
from headlong.models.model_config import ModelConfig
from headlong.models.traffic import cache_traffic
from headlong.models.transformer import Backbone


class DeviceDrafters(NamedTuple):
    """Who drafts."""

    head: LayerHead | None = None
    ngram: NgramDrafter | None = None

    def begin(self) -> DraftState:
        """Return the memory of a new sequence; a head's lies on the device."""
        return () if self.ngram is None else self.ngram.begin()


class DeviceRunner:
    """Runs sequences by whole rounds on one device."""

    def __init__(
        self,
        backbone: Backbone,
        drafters: DeviceDrafters,
        bounds: RunnerBounds,
        *,
        begins_ahead: bool = True,
    ) -> None:
        """Set up for one model; `begins_ahead` lets the device go on before results are read."""
        self.backbone = backbone
        self.drafters = drafters
        context = backbone.config.context_length
        table_pages = pages_of_context(context)
        self._faults = DeviceFaults()
        with self._faults.guard():
            tensors = DeviceTensors(backbone, drafters.head, bounds.max_running, table_pages)
        num_pages = count_pages(bounds, tensors)
        with self._faults.guard():
            tensors.make_pages(num_pages)
        self.memory = PageMemory(
            PagePool(num_pages, tensors.page_bytes, tensors.copy_page), bounds.prefix_bytes
        )
        head = None if drafters.head is None else DeviceHead(drafters.head, tensors.ops.paged)
        self._tensors = tensors
        self._slots: dict[DecodingSequence, int] = {}
        self._free_slots = list(range(bounds.max_running))
        self._prefill = DevicePrefill(backbone, head, tensors)
        device_round = DeviceRound(backbone, head, tensors)
        self.rounds = DeviceRounds(
            tensors, device_round, drafters.ngram, context, begins_ahead, self._slots
        )
        self._traffic = cache_traffic(backbone)

    @property
    def config(self) -> ModelConfig:
        """The shape of the backbone."""
        return self.backbone.config

    @property
    def backend(self) -> str:
        """What computes, in words for people."""
        ops, replay = self._tensors.ops, self.rounds.replay
        how = "replayed as graphs" if replay.captures else "without graphs"
        if replay.failed:
            which = f"{len(replay.failed)} kinds of them " if replay.captures else ""
            how += f", {which}many times slower, as they cannot be captured ({replay.problem})"
        elif replay.problem is not None:
            how += f", with kernels that do not overlap, as that fails ({replay.problem})"
        return f"{ops.name}, {ops.note}, whole rounds {how}"

    @property
    def lost(self) -> HeadlongError | None:
        """Why the device cannot be used any more; None while it can."""
        return self._faults.lost

    @property
    def max_sequence_tokens(self) -> int:
        """Tokens, prompt and answer, that one request alone can have: the context, or less."""
        return min(self.config.context_length, self.memory.most_tokens)

    @property
    def usage(self) -> MemoryUsage:
        """What the pages hold now."""
        return self.memory.usage

    def make_sequence(self, request: Request) -> DecodingSequence:
        """Return a sequence that waits to begin; refuse parameters that can never work."""
        has_drafter = any(one is not None for one in self.drafters)
        host = self._tensors.ops.host
        return make_sequence(request, self.config, host, has_drafter=has_drafter)

    def begin(self, sequence: DecodingSequence, *, is_idle: bool) -> Admission:
        """Give a sequence its pages, filled with what others have run of its prompt.

        The head observes every prompt, also where its sequence `is_idle`: it is one layer more.
        """
        self._faults.check()
        sequence.plan = DraftPlan()
        if not self._free_slots:
            return Admission.NO_ROOM
        with self._faults.guard():
            return self._begin(sequence)

    def prefill(self, chunks: Sequence[PromptChunk]) -> list[PrefillResult]:
        """Run the next rows of some prompts in one pass; a failure is in its own result only."""
        saved = [save(chunk.sequence) for chunk in chunks]
        states = [state_of(chunk.sequence) for chunk in chunks]
        nums_observed = [state.num_observed for state in states]
        slots = [self._slots[chunk.sequence] for chunk in chunks]
        most_rows = max(chunk.sequence.cache.length + chunk.num_rows for chunk in chunks)
        width = table_width(most_rows, self._tensors.table.shape[1])
        try:
            with self._faults.guard():
                return self._prefill(chunks, slots, width)
        except Exception as error:
            for chunk, state, before, num in zip(chunks, states, saved, nums_observed, strict=True):
                restore(chunk.sequence, before, None, self._make_sampler)
                state.num_observed = num
            if self._is_final(error, len(chunks)):
                return [PrefillResult(error=as_engine_error(error)) for _ in chunks]
        return [result for chunk in chunks for result in self.prefill([chunk])]

    def has_room(self, decoding: Sequence[DecodingSequence]) -> bool:
        """Tell whether the next round of these sequences fits into memory beside all others."""
        return self.memory.has_room(decoding)

    def round(
        self, batch: Sequence[DecodingSequence], plans: Sequence[DraftPlan], max_rows: int
    ) -> list[RoundResult]:
        """Draft, verify, accept and commit; a failure is in its own result only."""
        for sequence, plan in zip(batch, plans, strict=True):
            sequence.plan = plan
        try:
            with self._faults.guard():
                found = self._make_round(batch, max_rows)
        except Exception as error:
            self.rounds.forget()
            if self._is_final(error, len(batch)):
                return [RoundResult(error=as_engine_error(error)) for _ in batch]
            alone = zip(batch, plans, strict=True)
            return [one for s, plan in alone for one in self.round([s], [plan], max_rows)]
        return [found[sequence] for sequence in batch]

    def release(self, sequence: DecodingSequence, *, keeps: bool) -> None:
        """Take the pages back; `keeps` them for requests that begin the same way."""
        self.memory.release(sequence, keeps=keeps)
        if sequence in self._slots:
            self._free_slots.append(self._slots.pop(sequence))

    def cache_share(self, batch: Sequence[DecodingSequence]) -> float:
        """Return what a pass reads of these sequences' caches, as a share of the weights."""
        return self._traffic.share([sequence.cache.length for sequence in batch])

    def clear_prefixes(self) -> None:
        """Forget what ended requests have left."""
        self.memory.prefixes.clear()

    def _begin(self, sequence: DecodingSequence) -> Admission:
        admission = self.memory.begin(sequence, has_head=self.drafters.head is not None)
        if admission is Admission.BEGUN:
            sequence.draft_state = self.drafters.begin() if sequence.drafts else None
            self._slots[sequence] = self._free_slots.pop()
            self._send_pages(sequence)
        return admission

    def _make_round(
        self, batch: Sequence[DecodingSequence], max_rows: int
    ) -> dict[DecodingSequence, RoundResult]:
        for sequence in batch:
            state = state_of(sequence)
            if state.num_missing(state.length + ROOM_ROWS):
                state.reserve(state.length + ROOM_ROWS)
                self._send_pages(sequence)
        return self.rounds.read(self.rounds.begin(batch, max_rows), batch)

    def _send_pages(self, sequence: DecodingSequence) -> None:
        self._tensors.put_pages(self._slots[sequence], state_of(sequence).pages)

    def _make_sampler(self, request: Request) -> Sampler:
        return make_sampler(request, self.config, self._tensors.ops.host)

    def _is_final(self, error: Exception, num_sequences: int) -> bool:
        """Tell whether to give up after an error; otherwise each sequence is run again, alone."""
        has_room_now = isinstance(error, DeviceMemoryError) and self._give_memory_back()
        return self._faults.lost is not None or (num_sequences == 1 and not has_room_now)

    def _give_memory_back(self) -> bool:
        """Give back graphs and kept prefixes; tell whether there were any."""
        rounds, prefixes = self.rounds, self.memory.prefixes
        had_any = len(rounds.replay) + len(prefixes) > 0
        rounds.replay.clear()
        prefixes.clear()
        empty_device_cache(self._tensors.ops.device)
        return had_any
