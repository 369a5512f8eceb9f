"""The engine client: the protocol through which `LLM`, server, bench and doctor use an engine.

In:  a `Request` of token ids.
Out: a `TokenStream`: tokens with their sources as they come, then one `RequestReport`.
The local `Engine` is one implementation and `Running` is its stream. An engine in another process
is a second one; nothing above this file would change for it.
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
    """Why it ended; tokens may still be ready to be taken. None while it goes on."""
    error: HeadlongError | None
    """What went wrong, where it ended with `FinishReason.ERROR`."""

    @property
    def num_ready(self) -> int:
        """Tokens that have arrived and were not taken."""

    def take(self, most: int | None = None) -> list[Emitted]:
        """Return tokens that were not taken before, oldest first: all, or at most so many."""

    def report(self) -> RequestReport:
        """Return what the request took: at its end, or so far."""


class EngineClient(Protocol):
    """Runs requests. Not thread-safe: one thread at a time uses a client."""

    limits: EngineLimits

    @property
    def context_length(self) -> int:
        """Tokens, prompt and answer, that the model can attend to."""

    @property
    def vocab_size(self) -> int:
        """Token ids go from 0 to one less."""

    @property
    def max_sequence_tokens(self) -> int:
        """Tokens, prompt and answer, that one request can have: the context, or less memory."""

    @property
    def backend(self) -> str:
        """What computes, in words for people."""

    @property
    def num_running(self) -> int:
        """Requests that read their prompt or decode."""

    @property
    def num_waiting(self) -> int:
        """Requests that wait to run."""

    def submit(self, request: Request) -> TokenStream:
        """Take a request in; its tokens come with later steps.

        Raises:
            RequestError: It could never be run.
            BusyError: Too many others wait; `retry_after_s` says when there should be room.
        """

    def step(self) -> None:
        """Move every request on: compute once, or wait for the next tokens of a remote engine."""

    def wake(self) -> None:
        """Make a `step` that waits return now; the one method that any thread may call."""

    def cancel(self, stream: TokenStream, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """End a request now; tokens that were not taken are dropped and do not count.

        Callers end a request at a stop string in this way, with `FinishReason.STOP`.
        """

    def fail(self, stream: TokenStream, error: Exception) -> None:
        """End a request with an error; others go on."""

    def snapshot(self) -> EngineSnapshot:
        """Return what the engine is doing now."""

    def clear_prefixes(self) -> None:
        """Drop the kept prefixes, so that the next prompt runs from its start."""
