"""The engine: advances all running requests, step by step, with a runner.

In:  requests of token ids.
Out: tokens in each request's outbox, and why it ended.
A step admits waiting requests, runs chunks of prompts, and runs one round of all requests that
decode. If a prompt is complete, the step ends before the round, so that the first token is emitted
at once. A fault ends only its own request. Knows nothing of text, logits and caches; not
thread-safe: one thread owns an engine.
"""

import time
from dataclasses import dataclass, field

from headlong.decode.choose_runner import choose_runner
from headlong.decode.prefill import PromptChunk
from headlong.decode.recovery import as_engine_error
from headlong.decode.request import Request
from headlong.decode.round import RoundResult
from headlong.decode.runner import Admission, Runner, RunnerBounds
from headlong.decode.sampling import Pick
from headlong.drafters.draft_plan import DraftPlan
from headlong.drafters.drafter import Drafter
from headlong.engine.admission import check_request
from headlong.engine.client import TokenStream
from headlong.engine.draft_policy import Candidate, DraftPolicy
from headlong.engine.limits import EngineLimits, EngineSnapshot
from headlong.engine.request import BACKBONE, Emitted, FinishReason, Running
from headlong.engine.scheduler import Scheduler
from headlong.models.transformer import Backbone


@dataclass(slots=True)
class Engine:
    """Runs requests on one runner."""

    runner: Runner
    limits: EngineLimits = field(default_factory=EngineLimits)
    policy: DraftPolicy = field(default_factory=DraftPolicy)
    _scheduler: Scheduler = field(init=False)
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

    @classmethod
    def for_model(
        cls, backbone: Backbone, drafter: Drafter | None = None, limits: EngineLimits | None = None
    ) -> "Engine":
        """Return an engine that runs a backbone and its drafter on the backbone's own backend."""
        limits = limits or EngineLimits()
        bounds = RunnerBounds(limits.kv_bytes, limits.prefix_bytes, limits.max_running)
        return cls(choose_runner(backbone, drafter, bounds), limits)

    def submit(self, request: Request) -> Running:
        """Accept a request; it runs in the following steps.

        Raises:
            RequestError: It could never be run.
            BusyError: The queue is full; `retry_after_s` says when to try again.
        """
        check_request(request, self.runner)
        sequence = self.runner.make_sequence(request)
        policy = self.policy.new_request(
            request.mtp, request.sampling.temperature, honours_k=self.limits.honour_k
        )
        running = Running(request, sequence, policy, self._num_submitted)
        self._scheduler.enqueue(running)
        self._num_submitted += 1
        return running

    @property
    def num_running(self) -> int:
        """Requests in prefill or decoding."""
        return len(self._scheduler.running)

    @property
    def num_waiting(self) -> int:
        """Requests that have not begun, or were preempted."""
        return len(self._scheduler.waiting)

    @property
    def context_length(self) -> int:
        """Most tokens, prompt and answer, that the model supports."""
        return self.runner.config.context_length

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self.runner.config.vocab_size

    @property
    def backend(self) -> str:
        """Name of the backend, for people."""
        return self.runner.backend

    @property
    def max_sequence_tokens(self) -> int:
        """Most tokens, prompt and answer, of one request: the context, or what memory allows."""
        return self.runner.max_sequence_tokens

    def snapshot(self) -> EngineSnapshot:
        """Return the present state of the engine."""
        usage = self.runner.usage
        return EngineSnapshot(
            num_running=len(self._scheduler.running),
            num_waiting=len(self._scheduler.waiting),
            num_prefilling=len(self._scheduler.prefilling),
            last_rows=self._last_rows,
            kv_bytes=usage.kv_bytes,
            kv_limit_bytes=self.limits.kv_bytes,
            prefix_bytes=usage.prefix_bytes,
            prefix_entries=usage.prefix_entries,
            prefix_hit_tokens=usage.prefix_hit_tokens,
            prefix_lookup_tokens=usage.prefix_lookup_tokens,
            num_preemptions=self._num_preemptions,
            num_finished=self._num_finished,
            num_failed=self._num_failed,
            problem=None if self.runner.lost is None else self.runner.lost.problem,
        )

    def clear_prefixes(self) -> None:
        """Forget what ended requests have left, so that the next prompt is read from its start."""
        self.runner.clear_prefixes()

    def wake(self) -> None:
        """Do nothing: no step waits."""

    def cancel(self, stream: TokenStream, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """End a request now; it takes part in no further step, and untaken tokens do not count."""
        assert isinstance(stream, Running), "a stream that this engine has given out"
        if self._is_stepping:  # a stream that is dropped while a pass holds its cache
            self._cancelled.append((stream, reason))
            return
        timings = stream.timings
        timings.num_tokens = max(0, timings.num_tokens - len(stream.outbox))
        stream.outbox.clear()
        self._finish(stream, reason)

    def fail(self, stream: TokenStream, error: Exception) -> None:
        """End a request with an error; others go on."""
        assert isinstance(stream, Running), "a stream that this engine has given out"
        stream.error = as_engine_error(error)
        self._finish(stream, FinishReason.ERROR, keeps=False)

    def step(self) -> None:
        """Move every request on: begin, read prompts, one round for all that decode."""
        self._is_stepping = True
        try:
            self._admit()
            # First tokens go out at once; then comes the round, before any more of the prompts.
            self._owes_round = not self._owes_round and self._read_prompts()
            if not self._owes_round:
                self._decode()
        except BaseException as error:
            for running in list(self._scheduler.running):  # their caches may be half-written
                if isinstance(error, Exception):
                    self.fail(running, error)
                self._finish(running, FinishReason.ERROR, keeps=False)
            raise
        finally:
            self._is_stepping = False
            cancelled, self._cancelled = self._cancelled, []
            for running, reason in cancelled:
                self.cancel(running, reason)

    def _admit(self) -> None:
        """Let waiting requests begin, in order, while there are places and memory."""
        scheduler = self._scheduler
        for running in list(scheduler.waiting):
            if len(scheduler.running) >= self.limits.max_running:
                return
            # Beside others a draft may never pay; then the drafter need not observe the prompt.
            is_idle = running.policy.is_auto and bool(scheduler.running)
            try:
                admission = self.runner.begin(running.sequence, is_idle=is_idle)
            except Exception as error:
                self.fail(running, error)
                continue
            if admission is Admission.NO_ROOM:
                return
            if admission is Admission.BEGUN:
                scheduler.begin(running)

    def _read_prompts(self) -> bool:
        """Run the next chunks of prompts in one pass; return whether there are first tokens."""
        chunks = self._scheduler.next_chunks()
        if not chunks:
            return False
        began_s = time.perf_counter()
        results = self.runner.prefill(
            [PromptChunk(running.sequence, num_rows) for running, num_rows in chunks]
        )
        num_rows = sum(num_rows for _, num_rows in chunks)
        self._scheduler.observe_prefill(num_rows, time.perf_counter() - began_s)
        for (running, _), result in zip(chunks, results, strict=True):
            running.timings.prefill_s += result.prefill_s
            running.timings.prefill_head_s += result.head_s
            if result.error is not None:
                self.fail(running, result.error)
            elif result.pick is not None:
                self._emit(running, result.pick, BACKBONE, 0)
        return any(result.pick is not None for result in results)

    def _decode(self) -> None:
        """Make one round for all requests whose prompt is through."""
        began_s = time.perf_counter()
        batch = self._make_room(self._scheduler.decoding)
        if not batch:
            return
        plans = self._plan(batch)
        drafting = [one for one, plan in zip(batch, plans, strict=True) if plan.runs_drafter]
        num_backlog_rows = sum(one.sequence.backlog.num_rows for one in drafting)
        sequences = [one.sequence for one in batch]
        results = self.runner.round(sequences, plans, self.limits.rows_per_step)
        nums_emitted = [
            self._hand_out(running, result) for running, result in zip(batch, results, strict=True)
        ]
        # A round that was begun ahead took longer than it was waited for.
        seconds = max(time.perf_counter() - began_s, *(one.verify_s for one in results))
        plans = [one.plan or plan for one, plan in zip(results, plans, strict=True)]
        if all(one.is_representative for one in results):
            self._scheduler.observe_round(seconds)
        self._last_rows = sum(len(result.draft.token_ids) + 1 for result in results)
        has_end = any(one.finish_reason is not None for one in batch)
        is_representative = not has_end and not num_backlog_rows
        requests = [one.policy for one in batch]
        plain_s = self.policy.observe(requests, plans, results, seconds, is_representative)
        for running, result, num in zip(batch, results, nums_emitted, strict=True):
            if result.verdict is not None:
                # Tokens behind the end would not have been decoded plainly, either.
                all_s = None if plain_s is None else num * plain_s
                running.timings.observe_round(seconds, result.draft_s, result.verify_s, all_s)

    def _plan(self, batch: list[Running]) -> list[DraftPlan]:
        """Ask the policy for every request; never for more than it can still use."""
        sequences = [one.sequence for one in batch]
        candidates = [
            Candidate(one.policy, sequence.backlog.num_rows, sequence.draft_state is not None)
            for one, sequence in zip(batch, sequences, strict=True)
        ]
        cache_share = self.runner.cache_share(sequences)
        plans = self.policy.plan(candidates, self.limits.rows_per_step, cache_share)
        return [
            plan.at_most(max(0, running.tokens_left(self.context_length) - 1))
            for running, plan in zip(batch, plans, strict=True)
        ]

    def _make_room(self, batch: list[Running]) -> list[Running]:
        """Preempt the newest requests until the next round of the others fits into memory."""
        running = self._scheduler.running
        while batch and not self.runner.has_room([one.sequence for one in batch]):
            if len(running) == 1:
                break  # alone it may have all there is
            newest = max(running, key=lambda one: one.arrival)
            self.runner.release(newest.sequence, keeps=False)
            self._scheduler.preempt(newest)
            self._num_preemptions += 1
            batch = [one for one in batch if one is not newest]
        return batch

    def _hand_out(self, running: Running, result: RoundResult) -> int:
        """Emit the tokens of a round for one request; return how many."""
        if result.verdict is None:
            assert result.error is not None
            self.fail(running, result.error)
            return 0
        num_accepted, num_before = result.verdict.num_accepted, running.num_emitted
        running.stats.observe_round(result.draft.sources, num_accepted)
        sources = [*result.draft.sources[:num_accepted], BACKBONE]
        for depth, (pick, source) in enumerate(
            zip(result.verdict.picks, sources, strict=True), start=1
        ):
            self._emit(running, pick, source, 0 if source == BACKBONE else depth)
        return running.num_emitted - num_before

    def _emit(self, running: Running, pick: Pick, source: str, depth: int) -> None:
        """Emit one token unless the request has ended; end the request at EOS or its limit."""
        if running.finish_reason is not None:
            return  # accepted tokens after the end are dropped
        running.outbox.append(Emitted(pick, source, depth))
        running.num_emitted += 1
        running.timings.num_tokens = running.num_emitted - 1  # the first is prefill's
        stopping = running.request.stopping
        is_end = pick.token_id in running.request.eos_ids
        if is_end and running.warning is not None:
            self._finish(running, FinishReason.LENGTH)
        elif is_end and not stopping.ignore_eos:
            self._finish(running, FinishReason.STOP)
        elif running.tokens_left(self.context_length) <= 0:
            self._finish(running, FinishReason.LENGTH)

    def _finish(self, running: Running, reason: FinishReason, *, keeps: bool = True) -> None:
        """End a request; `keeps` its caches as a prefix for later requests, or frees them."""
        if running.finish_reason is not None:
            return
        running.finish_reason = reason
        self._num_finished += 1
        self._num_failed += reason is FinishReason.ERROR
        self.runner.release(running.sequence, keeps=keeps)
        self._scheduler.remove(running)
