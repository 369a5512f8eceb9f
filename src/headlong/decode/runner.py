"""The runner: the interface between the engine (requests, scheduling, policy) and the model.

In:  sequences, prompt chunks, draft plans. Out: picks, numbers of accepted tokens, timings.
Logits, hidden states, caches and drafts stay below this interface, on the runner's device.
`step_runner.py` composes the op set of a backend block by block.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from headlong.decode.prefill import PrefillResult, PromptChunk
from headlong.decode.request import Request
from headlong.decode.round import RoundResult
from headlong.decode.sequence import DecodingSequence
from headlong.drafters.draft_plan import DraftPlan
from headlong.errors import EngineError, HeadlongError
from headlong.models.model_config import ModelConfig


class Admission(Enum):
    """Whether a sequence could begin."""

    BEGUN = "begun"
    DEFERRED = "deferred"
    """Another sequence is running the same prompt; waiting for its rows costs less."""
    NO_ROOM = "no room"


@dataclass(frozen=True, slots=True)
class MemoryUsage:
    """Present contents of a runner's caches."""

    kv_bytes: int
    """Bytes of all caches: running sequences, draft states, kept prefixes."""
    prefix_bytes: int
    """Of these, bytes of kept prefixes."""
    prefix_entries: int
    prefix_hit_tokens: int
    """Prompt tokens found in kept prefixes so far."""
    prefix_lookup_tokens: int
    """Prompt tokens looked up so far."""


@dataclass(frozen=True, slots=True)
class RunnerBounds:
    """Limits of a runner."""

    kv_bytes: int | None = None
    """Bytes of all caches; None: limited by the device only."""
    prefix_bytes: int = 0
    """Of these, bytes of kept prefixes."""
    max_running: int = 32
    """Sequences that have caches at the same time."""


class Faults(Protocol):
    """Distinguishes faults of a device from faults of requests."""

    lost: EngineError | None
    """Why the device cannot be used any more."""

    def guard(self) -> AbstractContextManager[None]:
        """Return a context for work on the device; it raises if the device is lost."""


class Runner(Protocol):
    """Runs sequences of one backbone and one drafter on one device."""

    @property
    def config(self) -> ModelConfig:
        """The configuration of the backbone."""

    @property
    def backend(self) -> str:
        """Name of the backend and device, for people."""

    @property
    def max_sequence_tokens(self) -> int:
        """Most tokens, prompt and answer, of a request that runs alone: the context, or less."""

    @property
    def lost(self) -> HeadlongError | None:
        """Why the device cannot be used any more; None while it can."""

    @property
    def usage(self) -> MemoryUsage:
        """Present contents of the caches."""

    def make_sequence(self, request: Request) -> DecodingSequence:
        """Return a sequence that has not begun; refuse invalid parameters."""

    def begin(self, sequence: DecodingSequence, *, is_idle: bool) -> Admission:
        """Give a sequence its caches, with rows of its prompt that others have computed.

        If it `is_idle`, its drafter may observe the prompt later.
        """

    def prefill(self, chunks: Sequence[PromptChunk]) -> list[PrefillResult]:
        """Run the next rows of some prompts in one pass; a failure is in its own result only."""

    def has_room(self, decoding: Sequence[DecodingSequence]) -> bool:
        """Tell whether memory suffices for the next round of these sequences."""

    def round(
        self, batch: Sequence[DecodingSequence], plans: Sequence[DraftPlan], max_rows: int
    ) -> list[RoundResult]:
        """Draft, verify, accept and commit; a failure is in its own result only."""

    def release(self, sequence: DecodingSequence, *, keeps: bool) -> None:
        """Free the caches, or keep them as a prefix for other requests (`keeps`)."""

    def cache_share(self, batch: Sequence[DecodingSequence]) -> float:
        """Return the bytes of caches that a pass reads, as a share of the bytes of weights."""

    def clear_prefixes(self) -> None:
        """Drop all kept prefixes."""
