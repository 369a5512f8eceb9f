"""The engine: owns backbone, drafter and caches; moves all running requests on, step by step.

In:  requests of token ids.
Out: tokens in each request's outbox, and why it ended.
A step lets waiting requests begin, reads a piece of their prompts, and makes one round for all that
decode; where prompts are through, it ends there, so that first tokens need not wait for the round.
A fault ends the request it belongs to; the others go on. Knows nothing of text; not thread-safe:
one thread owns an engine.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from headlong.decode.observing import catch_up
from headlong.decode.prefill import PromptChunk, prefill
from headlong.decode.round import RoundResult, run_round
from headlong.decode.sampling import Pick, Sampler
from headlong.decode.sequence import DecodingSequence
from headlong.drafters.draft_plan import DraftPlan
from headlong.drafters.drafter import Drafter
from headlong.engine.accounting import account, count_rows
from headlong.engine.admission import check_request, max_sequence_tokens
from headlong.engine.draft_policy import Candidate, DraftPolicy
from headlong.engine.limits import EngineLimits, EngineSnapshot
from headlong.engine.memory import SPARE_ROWS, CacheMemory, no_cache
from headlong.engine.recovery import Rescue, as_engine_error, run_together
from headlong.engine.request import BACKBONE, Emitted, FinishReason, Request, Running
from headlong.engine.scheduler import Scheduler
from headlong.models.traffic import CacheTraffic, cache_traffic
from headlong.models.transformer import Backbone

_T = TypeVar("_T")


@dataclass(slots=True)
class Engine:
    """Runs requests against one backbone and one drafter."""

    backbone: Backbone
    drafter: Drafter | None = None
    limits: EngineLimits = field(default_factory=EngineLimits)
    policy: DraftPolicy = field(default_factory=DraftPolicy)
    _scheduler: Scheduler = field(init=False)
    _memory: CacheMemory = field(init=False)
    _traffic: CacheTraffic = field(init=False)
    _num_submitted: int = 0
    _num_finished: int = 0
    _num_failed: int = 0
    _num_preemptions: int = 0
    _last_rows: int = 0
    _owes_round: bool = False
    _is_stepping: bool = False
    _cancelled: list[tuple[Running, FinishReason]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._scheduler = Scheduler(self.limits)
        self._memory = CacheMemory(self.backbone, self.drafter, self.limits)
        self._traffic = cache_traffic(self.backbone)

    def submit(self, request: Request) -> Running:
        """Take a request in; it runs as steps are made.

        Raises:
            RequestError: It could never be run.
            BusyError: Too many others wait; `retry_after_s` says when there should be room.
        """
        check_request(request, self.backbone.config, self._memory)
        has_drafter = self.drafter is not None and request.mtp != "off"
        sequence = DecodingSequence(
            token_ids=list(request.prompt_ids),
            cache=no_cache(),
            sampler=self._make_sampler(request),
            draft_state=None,
        )
        if self.drafter is None and request.mtp != "off":
            sequence.off_reason = "The model was loaded without a drafter."
        policy = self.policy.new_request(request.mtp, request.sampling.temperature)
        running = Running(request, sequence, policy, self._num_submitted, has_drafter)
        self._scheduler.enqueue(running)
        self._num_submitted += 1
        return running

    @property
    def num_running(self) -> int:
        """Requests that read their prompt or decode."""
        return len(self._scheduler.running)

    @property
    def num_waiting(self) -> int:
        """Requests that have not begun, or were set back to make room."""
        return len(self._scheduler.waiting)

    @property
    def max_sequence_tokens(self) -> int:
        """Tokens, prompt and answer, that one request can have: the context, or less memory."""
        return max_sequence_tokens(self._memory, self.backbone.config.context_length)

    def snapshot(self) -> EngineSnapshot:
        """Return what the engine is doing now."""
        memory, running = self._memory, self._scheduler.running
        return EngineSnapshot(
            num_running=len(running),
            num_waiting=len(self._scheduler.waiting),
            num_prefilling=len(self._scheduler.prefilling),
            last_rows=self._last_rows,
            kv_bytes=self._running_bytes() + memory.prefixes.num_bytes,
            kv_limit_bytes=self.limits.kv_bytes,
            prefix_bytes=memory.prefixes.num_bytes,
            prefix_entries=len(memory.prefixes),
            prefix_hit_tokens=memory.hit_tokens,
            prefix_lookup_tokens=memory.lookup_tokens,
            num_preemptions=self._num_preemptions,
            num_finished=self._num_finished,
            num_failed=self._num_failed,
        )

    def clear_prefixes(self) -> None:
        """Forget what ended requests have left, so that the next prompt is read from its start."""
        self._memory.prefixes.clear()

    def cancel(self, running: Running, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """End a request now; it takes part in no further step, and untaken tokens do not count."""
        if self._is_stepping:  # a stream that is dropped while a pass holds its cache
            self._cancelled.append((running, reason))
            return
        timings = running.sequence.timings
        timings.num_tokens = max(0, timings.num_tokens - len(running.outbox))
        running.outbox.clear()
        self._finish(running, reason)

    def step(self) -> None:
        """Move every request on: begin, read prompts, one round for all that decode."""
        self._is_stepping = True
        try:
            self._admit()
            # First tokens go out at once; then comes the round, before any more of the prompts.
            self._owes_round = not self._owes_round and self._read_prompts()
            if not self._owes_round:
                self._decode()
        except BaseException:
            for running in list(self._scheduler.running):  # their caches may be half-written
                self._finish(running, FinishReason.ERROR, keeps=False)
            raise
        finally:
            self._is_stepping = False
            cancelled, self._cancelled = self._cancelled, []
            for running, reason in cancelled:
                self.cancel(running, reason)

    def _make_sampler(self, request: Request) -> Sampler:
        constraint = None if request.grammar is None else request.grammar.begin()
        vocab_size = self.backbone.config.vocab_size
        return Sampler(request.sampling, request.prompt_ids, vocab_size, constraint)

    def _running_bytes(self, num_more_rows: int = 0) -> int:
        return sum(
            self._memory.bytes_of(one.sequence, num_more_rows) for one in self._scheduler.running
        )

    def _admit(self) -> None:
        """Let waiting requests begin, in order, while there are places and memory."""
        scheduler, memory = self._scheduler, self._memory
        for running in list(scheduler.waiting):
            if len(scheduler.running) >= self.limits.max_running:
                return
            # Beside others a draft may never pay; then the drafter need not look at the prompt.
            is_idle = running.policy.is_auto and bool(scheduler.running)
            running.sequence.plan = DraftPlan(is_idle=is_idle)
            prefix, num_rows = memory.find(running, scheduler.running)
            if memory.awaits(running, scheduler.running, num_rows):
                continue
            needed = memory.bytes_to_begin(running, prefix, num_rows)
            # Room for what runs already to go on for a while, or the new one is soon set back.
            others = self._running_bytes(SPARE_ROWS)
            if scheduler.running and not memory.has_room(others + needed, prefix):
                return
            if not scheduler.running and not memory.has_room(needed, prefix):
                prefix, num_rows = None, 0  # alone it fits, once everything kept is gone
                memory.prefixes.clear()
            try:
                memory.begin(running, prefix, num_rows)
            except Exception as error:
                memory.prefixes.clear()  # what is wrong may lie in what was kept
                self._fail(running, error)
            else:
                scheduler.begin(running)

    def _read_prompts(self) -> bool:
        """Run the next chunks of prompts in one pass; tell whether first tokens came of it."""
        chunks = self._scheduler.next_chunks()
        if not chunks:
            return False
        sizes = {id(one): num_rows for one, num_rows in chunks}

        def run(batch: Sequence[Running]) -> list[Pick | None]:
            parts = [PromptChunk(one.sequence, sizes[id(one)]) for one in batch]
            return prefill(parts, self.backbone, self.drafter)

        began_s = time.perf_counter()
        picks = self._run_together([one for one, _ in chunks], run)
        self._scheduler.observe_prefill(sum(sizes.values()), time.perf_counter() - began_s)
        for running, pick in picks:
            if pick is not None:
                self._emit(running, pick, BACKBONE, 0)
        return any(pick is not None for _, pick in picks)

    def _decode(self) -> None:
        """Make one round for all requests whose prompt is through."""
        began_s = time.perf_counter()
        batch = self._scheduler.decoding
        plans = self._plan(batch) if batch else {}
        batch = self._make_room(batch, plans)
        if not batch:
            return

        def run(some: Sequence[Running]) -> list[RoundResult]:
            sequences = [one.sequence for one in some]
            own_plans = [plans[one] for one in some]
            most = self.limits.rows_per_step
            return run_round(sequences, own_plans, self.backbone, self.drafter, most)

        drafting = [one.sequence for one in batch if plans[one].runs_drafter]
        num_backlog_rows = sum(sequence.unobserved.num_rows for sequence in drafting)
        done = self._run_together(batch, run)
        num_emitted = [self._settle(running, result) for running, result in done]
        seconds = time.perf_counter() - began_s
        self._scheduler.observe_round(seconds)
        self._last_rows = count_rows(done)
        is_whole, is_typical = len(done) == len(batch), num_backlog_rows == 0
        account(self.policy, done, num_emitted, seconds, is_typical=is_typical, is_whole=is_whole)

    def _plan(self, batch: Sequence[Running]) -> dict[Running, DraftPlan]:
        """Ask the policy for every request; never for more than it can still use."""
        sequences = [one.sequence for one in batch]
        candidates = [
            Candidate(one.policy, sequence.unobserved.num_rows, sequence.draft_state is not None)
            for one, sequence in zip(batch, sequences, strict=True)
        ]
        cache_share = self._traffic.share([sequence.cache.length for sequence in sequences])
        plans = self.policy.plan(candidates, self.limits.rows_per_step, cache_share)
        context = self.backbone.config.context_length
        return {
            one: plan.at_most(max(0, one.tokens_left(context) - 1))
            for one, plan in zip(batch, plans, strict=True)
        }

    def _make_room(self, batch: list[Running], plans: dict[Running, DraftPlan]) -> list[Running]:
        """Set the newest requests back until the rows of the others fit into memory."""
        if self.limits.kv_bytes is None:
            return batch
        running = self._scheduler.running
        while running and not self._memory.has_room(self._bytes_after(plans)):
            resting = [one for one in running if one.sequence.unobserved.num_rows]
            if resting:
                self._run_together(resting, self._catch_up)  # what waits takes room, too
            elif len(running) == 1:
                break
            else:
                newest = max(running, key=lambda one: one.arrival)
                self._memory.release(newest, keeps=False)
                self._scheduler.set_back(newest)
                self._num_preemptions += 1
        return [one for one in batch if one in running]

    def _catch_up(self, batch: Sequence[Running]) -> list[None]:
        assert self.drafter is not None, "rows wait for a drafter only"
        catch_up(self.drafter, [one.sequence for one in batch])
        return [None] * len(batch)

    def _bytes_after(self, plans: dict[Running, DraftPlan]) -> int:
        """Return the bytes of running sequences after a round of those in `plans`."""
        return sum(
            self._memory.bytes_of(one.sequence, SPARE_ROWS if one in plans else 0)
            for one in self._scheduler.running
        )

    def _run_together(
        self, batch: Sequence[Running], run: Callable[[Sequence[Running]], list[_T]]
    ) -> list[tuple[Running, _T]]:
        return run_together(batch, run, Rescue(self.drafter, self._make_sampler, self._fail))

    def _settle(self, running: Running, result: RoundResult) -> int:
        """Hand out what the round brought for one request; return how many tokens that were."""
        if result.verdict is None:
            assert result.error is not None
            self._fail(running, result.error)
            return 0
        num_accepted, num_before = result.verdict.num_accepted, running.num_emitted
        running.sequence.stats.observe_round(result.draft.sources, num_accepted)
        sources = [*result.draft.sources[:num_accepted], BACKBONE]
        for depth, (pick, source) in enumerate(
            zip(result.verdict.picks, sources, strict=True), start=1
        ):
            self._emit(running, pick, source, 0 if source == BACKBONE else depth)
        return running.num_emitted - num_before

    def _emit(self, running: Running, pick: Pick, source: str, depth: int) -> None:
        """Hand one token out unless the request has ended; end it where it must."""
        if running.finish_reason is not None:
            return  # the rest of an accepted run, behind the end
        running.outbox.append(Emitted(pick, source, depth))
        running.num_emitted += 1
        running.sequence.timings.num_tokens = running.num_emitted - 1  # the first is prefill's
        stopping = running.request.stopping
        if pick.token_id in running.request.eos_ids and not stopping.ignore_eos:
            self._finish(running, FinishReason.STOP)
        elif running.tokens_left(self.backbone.config.context_length) <= 0:
            self._finish(running, FinishReason.LENGTH)

    def _fail(self, running: Running, error: Exception) -> None:
        running.error = as_engine_error(error)
        self._finish(running, FinishReason.ERROR, keeps=False)

    def _finish(self, running: Running, reason: FinishReason, *, keeps: bool = True) -> None:
        """End a request; its caches go to those that begin like it, or to nobody."""
        if running.finish_reason is not None:
            return
        running.finish_reason = reason
        self._num_finished += 1
        self._num_failed += reason is FinishReason.ERROR
        self._memory.release(running, keeps=keeps)
        self._scheduler.remove(running)
