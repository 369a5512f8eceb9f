"""An engine client without a model: it says what it is told, as an engine elsewhere would."""

from collections import deque
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from headlong.decode.request import Request
from headlong.decode.sampling import Pick
from headlong.decode.stats import DecodeStats, Timings
from headlong.engine.client import TokenStream
from headlong.engine.limits import EngineLimits, EngineSnapshot
from headlong.engine.request import Emitted, FinishReason, RequestReport
from headlong.errors import EngineError, HeadlongError


@dataclass(slots=True, eq=False)
class ScriptedStream:
    """Tokens that come one by one."""

    request: Request
    unsaid: deque[int]
    finish_reason: FinishReason | None = None
    error: HeadlongError | None = None
    ready: list[Emitted] = field(default_factory=list)
    num_said: int = 0

    @property
    def num_ready(self) -> int:
        """Tokens that have arrived and were not taken."""
        return len(self.ready)

    def take(self, most: int | None = None) -> list[Emitted]:
        """Return tokens that were not taken before."""
        taken, self.ready = self.ready[:most], self.ready[len(self.ready[:most]) :]
        return taken

    def report(self) -> RequestReport:
        """Return what is known of an engine elsewhere."""
        num_prompt_tokens = len(self.request.prompt_ids)
        stats, timings = DecodeStats(), Timings(decode_s=1.0, num_tokens=self.num_said)
        return RequestReport(
            stats, timings, num_prompt_tokens, 0, self.num_said, None, "Decided elsewhere."
        )


@dataclass(slots=True)
class ScriptedEngine:
    """Answers every request with the same tokens, one a step."""

    answer_ids: tuple[int, ...]
    limits: EngineLimits = field(default_factory=EngineLimits)
    context_length: int = 256
    vocab_size: int = 300
    max_sequence_tokens: int = 256
    backend: str = "elsewhere"
    streams: list[ScriptedStream] = field(default_factory=list)

    @property
    def num_running(self) -> int:
        """Requests that have not ended."""
        return sum(stream.finish_reason is None for stream in self.streams)

    @property
    def num_waiting(self) -> int:
        """None: every request begins at once."""
        return 0

    def submit(self, request: Request) -> ScriptedStream:
        """Take a request in."""
        self.streams.append(ScriptedStream(request, deque(self.answer_ids)))
        return self.streams[-1]

    def step(self) -> None:
        """Say one token of every answer."""
        for stream in self.streams:
            if stream.finish_reason is None:
                stream.ready.append(Emitted(Pick(stream.unsaid.popleft(), None), "elsewhere", 1))
                stream.num_said += 1
                if not stream.unsaid:
                    stream.finish_reason = FinishReason.LENGTH

    def wake(self) -> None:
        """Do nothing: a step never waits."""

    def cancel(self, stream: TokenStream, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """End a request."""
        assert isinstance(stream, ScriptedStream)
        stream.ready.clear()
        stream.finish_reason = stream.finish_reason or reason

    def fail(self, stream: TokenStream, error: Exception) -> None:
        """End a request with an error."""
        assert isinstance(stream, ScriptedStream)
        stream.error = EngineError(str(error), "")
        stream.finish_reason = stream.finish_reason or FinishReason.ERROR

    def snapshot(self) -> EngineSnapshot:
        """Return how many requests run; of an engine elsewhere no more is known."""
        unknown: dict[str, Any] = {
            one.name: 0 for one in fields(EngineSnapshot) if one.default is MISSING
        }
        return EngineSnapshot(**unknown | {"num_running": self.num_running})

    def clear_prefixes(self) -> None:
        """Keep nothing, as before."""
