"""The engine: owns backbone, drafter and caches; moves all running requests on, step by step.

In:  requests of token ids.
Out: tokens in each request's outbox, and why it ended.
A step is schedule, run, settle. Knows nothing of text; not thread-safe: one thread owns an engine.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from headlong.decode.prefill import DEFAULT_CHUNK, prefill
from headlong.decode.round import RoundResult, run_round
from headlong.decode.sampling import Pick, Sampler
from headlong.decode.sequence import DecodingSequence
from headlong.drafters.drafter import Drafter
from headlong.engine.policy import CostModel, Policy
from headlong.engine.request import BACKBONE, Emitted, FinishReason, Request, Running
from headlong.errors import RequestError
from headlong.models.transformer import Backbone


@dataclass(slots=True)
class Engine:
    """Runs requests against one backbone and one drafter."""

    backbone: Backbone
    drafter: Drafter | None = None
    prefill_chunk: int = DEFAULT_CHUNK
    costs: CostModel = field(default_factory=CostModel)
    _waiting: deque[Running] = field(default_factory=deque)
    _running: list[Running] = field(default_factory=list)

    def submit(self, request: Request) -> Running:
        """Take a request in; it runs as steps are made."""
        self._check(request)
        drafter = self.drafter if request.mtp != "off" else None
        sequence = DecodingSequence(
            token_ids=list(request.prompt_ids),
            cache=self.backbone.make_cache(),
            sampler=Sampler(request.sampling, request.prompt_ids, self.backbone.config.vocab_size),
            draft_state=None if drafter is None else drafter.begin(),
        )
        if drafter is None and request.mtp != "off":
            sequence.off_reason = "The model was loaded without a drafter."
        running = Running(request, sequence, Policy(request.mtp, self.costs))
        self._waiting.append(running)
        return running

    @property
    def num_running(self) -> int:
        """Requests that have not ended."""
        return len(self._waiting) + len(self._running)

    def cancel(self, running: Running, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """End a request now; it takes part in no further step, and untaken tokens do not count."""
        timings = running.sequence.timings
        timings.num_tokens = max(0, timings.num_tokens - len(running.outbox))
        running.outbox.clear()
        if running.finish_reason is None:
            self._finish(running, reason)

    def step(self) -> None:
        """Move every request on: prompts first, then one round for all that decode."""
        self._admit()
        if self._running:
            batch = list(self._running)
            lengths = [self._draft_length(running) for running in batch]
            sequences = [running.sequence for running in batch]
            with self._ending_on_failure(batch):
                results = run_round(sequences, lengths, self.backbone, self.drafter)
            self._settle(batch, results)

    def _check(self, request: Request) -> None:
        length, context = len(request.prompt_ids), self.backbone.config.context_length
        if not request.prompt_ids:
            raise RequestError("The prompt is empty.", "Give at least one token.")
        if length >= context:
            raise RequestError(
                f"The prompt has {length} tokens; the model's context holds {context}.",
                f"Shorten it to at most {context - 1} tokens.",
            )
        vocab_size = self.backbone.config.vocab_size
        unknown = [t for t in request.prompt_ids if not 0 <= t < vocab_size]
        if unknown:
            raise RequestError(
                f"Token id {unknown[0]} is not in the vocabulary.",
                f"Ids go from 0 to {vocab_size - 1}.",
            )

    def _admit(self) -> None:
        """Run the prompts of new requests and emit their first tokens."""
        while self._waiting:
            running = self._waiting.popleft()
            self._running.append(running)
            with self._ending_on_failure([running]):
                pick = prefill(running.sequence, self.backbone, self.drafter, self.prefill_chunk)
            self._emit(running, pick, BACKBONE, 0)

    @contextmanager
    def _ending_on_failure(self, batch: list[Running]) -> Iterator[None]:
        """End requests whose pass was broken off: their caches and histories no longer agree."""
        try:
            yield
        except BaseException:
            for running in batch:
                self.cancel(running, FinishReason.ERROR)
            raise

    def _draft_length(self, running: Running) -> int:
        """Return the policy's wish, but never more than the request can still use."""
        wanted = running.policy.choose()
        return max(0, min(wanted, _tokens_left(running, self.backbone) - 1))

    def _settle(self, batch: list[Running], results: list[RoundResult]) -> None:
        """Book what the round did and hand its tokens out."""
        num_rows = sum(len(result.draft.token_ids) + 1 for result in results)
        num_drafted = sum(len(result.draft.token_ids) for result in results)
        self.costs.observe(num_rows, results[0].verify_s, num_drafted, results[0].draft_s)
        for running, result in zip(batch, results, strict=True):
            _book(running.sequence, result)
            num_accepted = result.verdict.num_accepted
            running.policy.observe(len(result.draft.token_ids), num_accepted)
            sources = [*result.draft.sources[:num_accepted], BACKBONE]
            for depth, (pick, source) in enumerate(
                zip(result.verdict.picks, sources, strict=True), start=1
            ):
                self._emit(running, pick, source, 0 if source == BACKBONE else depth)

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
        elif _tokens_left(running, self.backbone) <= 0:
            self._finish(running, FinishReason.LENGTH)

    def _finish(self, running: Running, reason: FinishReason) -> None:
        running.finish_reason = reason
        for queue in (self._waiting, self._running):
            if running in queue:
                queue.remove(running)


def _tokens_left(running: Running, backbone: Backbone) -> int:
    """Return how many tokens the request may still get, by its own limit and by the context."""
    limit = running.request.stopping.max_tokens
    room = backbone.config.context_length - len(running.request.prompt_ids)
    return min(limit, room) - running.num_emitted


def _book(sequence: DecodingSequence, result: RoundResult) -> None:
    sequence.stats.observe_round(result.draft.sources, result.verdict.num_accepted)
    sequence.timings.draft_s += result.draft_s
    sequence.timings.verify_s += result.verify_s
    sequence.timings.decode_s += result.draft_s + result.verify_s
