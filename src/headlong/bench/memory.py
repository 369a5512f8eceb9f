"""Memory of one worker: weights, head, keys and values, kept prefixes, and the process itself.

In:  sizes of a model as the backend packs it, a context length, how many requests at once.
Out: `MemoryNeed`, with MTP and without. Keys and values are counted in the steps caches grow by.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headlong.cache.sequence_state import GROWTH
from headlong.errors import RequestError


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """What a model takes, in the formats it runs in."""

    weights_bytes: int
    kv_bytes_per_token: int
    head_bytes: int = 0
    head_kv_bytes_per_token: int = 0
    context_length: int | None = None
    """The longest context the model has; None when it is not known."""
    process_bytes: int = 0
    """Python, its libraries, the tokenizer."""


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes of one worker, part by part."""

    weights_bytes: int
    head_bytes: int
    kv_bytes: int
    """Of the backbone, for all requests."""
    head_kv_bytes: int
    prefix_bytes: int
    process_bytes: int
    """Python, its libraries, the tokenizer."""

    @property
    def plain_bytes(self) -> int:
        """All of it without MTP."""
        return self.weights_bytes + self.kv_bytes + self.prefix_bytes + self.process_bytes

    @property
    def mtp_bytes(self) -> int:
        """All of it with MTP."""
        return self.plain_bytes + self.head_bytes + self.head_kv_bytes

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {
            "weights_bytes": self.weights_bytes,
            "head_bytes": self.head_bytes,
            "kv_bytes": self.kv_bytes,
            "head_kv_bytes": self.head_kv_bytes,
            "prefix_bytes": self.prefix_bytes,
            "process_bytes": self.process_bytes,
            "plain_bytes": self.plain_bytes,
            "mtp_bytes": self.mtp_bytes,
        }


def plan_memory(sizes: ModelSizes, context: int, concurrency: int, prefix_bytes: int) -> MemoryNeed:
    """Compute the memory of a worker that holds so many contexts of this length at once."""
    if context < 1 or concurrency < 1 or prefix_bytes < 0:
        raise RequestError(
            f"A context of {context} tokens, {concurrency} requests at once and {prefix_bytes} "
            "bytes of kept prefixes make no worker.",
            "Context and concurrency must be 1 or more, kept prefixes 0 or more.",
        )
    if sizes.context_length is not None and context > sizes.context_length:
        raise RequestError(
            f"The context grows to {context:,} tokens; the model's holds {sizes.context_length:,}.",
            "Plan fewer steps or tokens, let the agent shorten its history, or take a model with a "
            "longer context.",
        )
    # Caches grow in steps; a context just over a step takes the whole next one.
    held = -(-context // GROWTH) * GROWTH * concurrency
    return MemoryNeed(
        weights_bytes=sizes.weights_bytes,
        head_bytes=sizes.head_bytes,
        kv_bytes=held * sizes.kv_bytes_per_token,
        head_kv_bytes=held * sizes.head_kv_bytes_per_token,
        prefix_bytes=prefix_bytes,
        process_bytes=sizes.process_bytes,
    )


def resident_bytes() -> int:
    """Return this process's resident memory; 0 where the system does not tell."""
    if not sys.platform.startswith("linux"):
        return 0
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))
