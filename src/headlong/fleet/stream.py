"""The stream of one request of a fleet: its tokens as they arrive, and what their making took.

In:  what the request's task tells, in order: where it runs, deltas, an error.
Out: a `TokenStream`. Belongs to the thread that owns the engine client.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import zip_longest

from headlong.decode.logprobs import TokenLogprob
from headlong.decode.request import Request
from headlong.decode.sampling import Pick
from headlong.decode.stats import DecodeStats, Timings
from headlong.engine.request import BACKBONE, Emitted, FinishReason, RequestReport
from headlong.errors import HeadlongError
from headlong.fleet.answer_parts import ENGINE
from headlong.fleet.dialect import Delta
from headlong.fleet.routing import Route


@dataclass(slots=True, eq=False)
class FleetStream:
    """A request that runs on some replica."""

    request: Request
    finish_reason: FinishReason | None = None
    error: HeadlongError | None = None
    ready: deque[Emitted] = field(default_factory=deque)
    num_arrived: int = 0
    route: Route | None = None
    """Where it runs; None while it waits."""
    _stats: DecodeStats = field(default_factory=DecodeStats)
    _num_cached: int = 0
    _prompt_logprobs: Mapping[int, TokenLogprob] = field(default_factory=dict)
    _sent_s: float = 0.0
    _first_s: float | None = None
    _last_s: float = 0.0

    @property
    def num_ready(self) -> int:
        """Tokens that have arrived and were not taken."""
        return len(self.ready)

    def take(self, most: int | None = None) -> list[Emitted]:
        """Return tokens that were not taken before, oldest first: all, or at most so many."""
        num = len(self.ready) if most is None else min(most, len(self.ready))
        return [self.ready.popleft() for _ in range(num)]

    def begin(self, route: Route, at_s: float) -> None:
        """Note where the request has been sent; again, where it is run again."""
        self.route = route
        if self._first_s is None:
            self._sent_s = at_s

    def read(self, delta: Delta, at_s: float) -> None:
        """Take what has arrived; the last delta ends the request."""
        assert self.route is not None, "only a replica can answer"
        if self._first_s is None:
            self._first_s = at_s
        self._last_s = at_s
        # What an engine that speculates sends at once, it accepted at once: all but the last one.
        num_accepted = len(delta.token_ids) - 1 if self.route.replica.drafts else 0
        for place, (token_id, logprob) in enumerate(zip_longest(delta.token_ids, delta.logprobs)):
            is_draft = place < num_accepted
            pick = Pick(token_id, logprob)
            source = ENGINE if is_draft else BACKBONE
            self.ready.append(Emitted(pick, source, place + 1 if is_draft else 0))
            if self.num_arrived and not self.route.replica.drafts:
                self._stats.observe_round((), 0)  # plain engines count no rounds: one for each
            self.num_arrived += 1
        if delta.stats is not None:
            self._stats.merge(delta.stats)
        self._num_cached = delta.num_cached_tokens or self._num_cached
        self._prompt_logprobs = delta.prompt_logprobs or self._prompt_logprobs
        if delta.is_end:
            self.finish_reason = delta.finish_reason

    def report(self) -> RequestReport:
        """Return what the request took: at its end, or so far."""
        route = self.route
        return RequestReport(
            stats=self._stats,
            timings=self._timings().at_most(self._stats.acceptance_length),
            num_prompt_tokens=len(self.request.prompt_ids),
            num_cached_tokens=self._num_cached,
            num_completion_tokens=self.num_arrived,
            off_reason=None if route is None else route.off_reason,
            explanation=self._explanation(),
            prompt_logprobs=self._prompt_logprobs,
            bound_reason=None if route is None else route.bound_reason,
        )

    def _explanation(self) -> str:
        if self.route is None:
            return "It has not begun."
        is_untold = self.finish_reason is not None and not self._stats.rounds
        if self.route.replica.drafts and is_untold and self.num_arrived > 1:
            # Engines tell them behind the last token; a stop string ends an answer before.
            return f"{self.route.explanation} It ended before the engine told what was accepted."
        return self.route.explanation

    def _timings(self) -> Timings:
        """Return what this side of the wire can tell of time."""
        if self._first_s is None or self.route is None:
            return Timings()
        num_tokens, decode_s = max(0, self.num_arrived - 1), self._last_s - self._first_s
        timings = Timings(self._first_s - self._sent_s, decode_s=decode_s, num_tokens=num_tokens)
        if self.route.plain_s is not None and self._stats.num_drafted:
            timings.plain_s, timings.compared_s = num_tokens * self.route.plain_s, decode_s
        return timings
