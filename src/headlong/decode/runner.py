"""The runner: what stands between the engine (requests, scheduling, policy) and the model.

In:  sequences, prompt chunks, draft plans. Out: picks, what was accepted, timings.
Everything between, logits, hidden states, caches and drafts, stays below this line and on the
runner's device. `step_runner.py` composes the op set of a backend block by block.
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
    """What the caches of a runner hold now."""

    kv_bytes: int
    """Bytes of all caches: running sequences, the drafter's memory, kept prefixes."""
    prefix_bytes: int
    """Of these, kept for requests that begin the same way."""
    prefix_entries: int
    prefix_hit_tokens: int
    """Prompt tokens found in kept prefixes so far."""
    prefix_lookup_tokens: int
    """Prompt tokens that were looked for."""


@dataclass(frozen=True, slots=True)
class RunnerBounds:
    """What a runner may hold at most."""

    kv_bytes: int | None = None
    """Bytes of all caches; None sets no bound but that of the device."""
    prefix_bytes: int = 0
    """Of these, bytes of kept prefixes."""
    max_running: int = 32
    """Sequences that have caches at the same time."""


class Faults(Protocol):
    """Tells faults of a device from those of requests."""

    lost: EngineError | None
    """Why the device cannot be used any more."""

    def guard(self) -> AbstractContextManager[None]:
        """Stand around work on the device: refuse it where the device is lost."""


class Runner(Protocol):
    """Runs sequences of one backbone and one drafter on one device."""

    @property
    def config(self) -> ModelConfig:
        """The shape of the backbone: context length, vocabulary."""

    @property
    def backend(self) -> str:
        """What computes, in words for people."""

    @property
    def max_sequence_tokens(self) -> int:
        """Tokens, prompt and answer, that one request alone can have: the context, or less."""

    @property
    def lost(self) -> HeadlongError | None:
        """Why the device cannot be used any more; None while it can."""

    @property
    def usage(self) -> MemoryUsage:
        """What the caches hold now."""

    def make_sequence(self, request: Request) -> DecodingSequence:
        """Return a sequence that waits to begin; refuse parameters that can never work."""

    def begin(self, sequence: DecodingSequence, *, is_idle: bool) -> Admission:
        """Give a sequence its caches, filled with what others have run of its prompt.

        Where it `is_idle`, its drafter may observe the prompt later.
        """

    def prefill(self, chunks: Sequence[PromptChunk]) -> list[PrefillResult]:
        """Run the next rows of some prompts in one pass; a failure is in its own result only."""

    def has_room(self, decoding: Sequence[DecodingSequence]) -> bool:
        """Tell whether the next round of these sequences fits into memory beside all others."""

    def round(
        self, batch: Sequence[DecodingSequence], plans: Sequence[DraftPlan], max_rows: int
    ) -> list[RoundResult]:
        """Draft, verify, accept and commit; a failure is in its own result only."""

    def release(self, sequence: DecodingSequence, *, keeps: bool) -> None:
        """Take the caches back; `keeps` them for requests that begin the same way."""

    def cache_share(self, batch: Sequence[DecodingSequence]) -> float:
        """Return what a pass reads of these sequences' caches, as a share of the weights."""

    def clear_prefixes(self) -> None:
        """Forget what ended requests have left."""
