"""Memory of one worker: planned from sizes, or measured on a loaded model.

In:  sizes of a model as the backend packs it, or a backbone and a head. Out: `MemoryNeed`, with MTP
and without, or `Footprint`. Keys and values are counted in the steps caches grow by.
"""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headlong.cache.sequence_state import GROWTH
from headlong.engine.limits import EngineLimits
from headlong.errors import RequestError
from headlong.heads.decoder_layer import LayerHead
from headlong.models.traffic import bytes_of, pass_bytes
from headlong.models.transformer import Backbone
from headlong.ops.blocks import Linear

NUM_POSITIONS = 2048
_NUM_ROUNDS = 192
"""After the prompt, so that what only a prompt needs is given back as in use."""


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
        return asdict(self) | {"plain_bytes": self.plain_bytes, "mtp_bytes": self.mtp_bytes}


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


@dataclass(frozen=True, slots=True)
class Footprint:
    """Resident memory and what it is taken by."""

    num_positions: int
    """Positions in the caches when it was measured."""
    resident_bytes: int
    """The whole process; 0 where the system does not tell."""
    program_bytes: int
    """Of it, what was there before the model: Python and its libraries."""
    weights_bytes: int
    head_bytes: int
    kv_bytes: int
    """Keys and values, the head's included."""

    @property
    def other_bytes(self) -> int:
        """What is left: the tokenizer, norms, scratch, what allocators keep."""
        known = self.program_bytes + self.weights_bytes + self.head_bytes + self.kv_bytes
        return max(0, self.resident_bytes - known)

    @property
    def share_of_weights(self) -> float:
        """All of it as a multiple of the weights, the head's included."""
        return self.resident_bytes / (self.weights_bytes + self.head_bytes)

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        shown = asdict(self)
        return {
            "positions": shown.pop("num_positions"),
            **shown,
            "other_bytes": self.other_bytes,
            "share_of_weights": self.share_of_weights,
        }


def measure_footprint(backbone: Backbone, head: LayerHead, program_bytes: int) -> Footprint:
    """Run a long prompt in chunks, as the engine does, then rounds of one row; read the memory."""
    most = min(NUM_POSITIONS, backbone.config.context_length)
    num_rounds = min(_NUM_ROUNDS, most // 2)
    num_positions = most - num_rounds
    cache, head_cache = backbone.make_cache(), head.make_cache()
    cache.reserve(most)
    rng = np.random.default_rng(0)
    chunk = EngineLimits().prefill_rows_per_step
    firsts = range(0, num_positions, chunk)
    for size in [*(min(chunk, num_positions - first) for first in firsts), *[1] * num_rounds]:
        ids = rng.integers(0, backbone.config.vocab_size, size)
        hidden = backbone.forward([ids], [cache], head.tap_layers)
        backbone.logits(hidden.normed[-1:])
        head.follow(head.features(hidden), [ids], [head_cache])
        cache.commit(size)
        head_cache.commit(size)
    is_tied, embedding = backbone.embedding is backbone.lm_head.weight, Linear(backbone.embedding)
    return Footprint(
        num_positions=cache.length,
        resident_bytes=resident_bytes(),
        program_bytes=program_bytes,
        weights_bytes=pass_bytes(backbone) + (0 if is_tied else bytes_of([embedding])),
        head_bytes=bytes_of([head.fc, head.lm_head, *head.layer.linears]),
        kv_bytes=cache.num_bytes + head_cache.num_bytes,
    )
