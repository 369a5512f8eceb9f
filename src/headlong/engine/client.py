"""The engine client: the protocol through which `LLM`, server, bench and doctor use an engine.

In:  a `Request` of token ids.
Out: a `TokenStream`: tokens with their sources as they come, then one `RequestReport`.
The local `Engine` implements it, with `Running` as its stream. `fleet/` implements it for engines
in other processes.
"""

from typing import Protocol

from headlong.decode.request import Request
from headlong.engine.limits import EngineLimits, EngineSnapshot
from headlong.engine.request import Emitted, FinishReason, RequestReport
from headlong.errors import HeadlongError


class TokenStream(Protocol):
    """The tokens of one submitted request."""

    request: Request
    finish_reason: FinishReason | None
    """Why it ended; tokens may still be ready. None while it runs."""
    error: HeadlongError | None
    """The error, if it ended with `FinishReason.ERROR`."""

    @property
    def num_ready(self) -> int:
        """Tokens that have arrived and were not taken yet."""

    def take(self, most: int | None = None) -> list[Emitted]:
        """Return tokens that were not taken before, oldest first: all, or at most so many."""

    def report(self) -> RequestReport:
        """Return statistics and timings of the request, final or so far."""


class EngineClient(Protocol):
    """Runs requests. Not thread-safe: one thread at a time uses a client."""

    limits: EngineLimits

    @property
    def context_length(self) -> int:
        """Most tokens, prompt and answer, that the model supports."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""

    @property
    def max_sequence_tokens(self) -> int:
        """Most tokens, prompt and answer, of one request: the context, or what memory allows."""

    @property
    def backend(self) -> str:
        """Name of the backend, for people."""

    @property
    def num_running(self) -> int:
        """Requests in prefill or decoding."""

    @property
    def num_waiting(self) -> int:
        """Requests that wait to run."""

    def submit(self, request: Request) -> TokenStream:
        """Accept a request; its tokens come with later steps.

        Raises:
            RequestError: It could never be run.
            BusyError: The queue is full; `retry_after_s` says when to try again.
        """

    def step(self) -> None:
        """Advance all requests: compute one step, or wait for tokens of a remote engine."""

    def wake(self) -> None:
        """Make a waiting `step` return now; the only method that any thread may call."""

    def cancel(self, stream: TokenStream, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """End a request now; tokens that were not taken are dropped and do not count.

        Callers end a request at a stop string in this way, with `FinishReason.STOP`.
        """

    def fail(self, stream: TokenStream, error: Exception) -> None:
        """End a request with an error; others continue."""

    def snapshot(self) -> EngineSnapshot:
        """Return the present state of the engine."""

    def clear_prefixes(self) -> None:
        """Drop the kept prefixes, so that the next prompt runs from its start."""
