"""The state of one stream of tokens while it is being decoded.

The engine makes these; prefill and round move them on. Between rounds one thing always holds: every
token but the newest is in the backbone's cache.
"""

from dataclasses import dataclass, field

from headlong.cache.kv_cache import KVCache
from headlong.decode.sampling import Sampler
from headlong.decode.stats import DecodeStats, Timings
from headlong.drafters.drafter import DraftState


@dataclass(slots=True)
class DecodingSequence:
    """Tokens, cache, sampler and drafter's memory of one sequence."""

    token_ids: list[int]
    """Prompt and answer so far."""
    cache: KVCache
    sampler: Sampler
    draft_state: DraftState | None
    """The drafter's memory; None when this sequence never drafts."""
    off_reason: str | None = None
    """Why this sequence does not draft though it was asked to: no drafter, or one that failed."""
    stats: DecodeStats = field(default_factory=DecodeStats)
    timings: Timings = field(default_factory=Timings)
