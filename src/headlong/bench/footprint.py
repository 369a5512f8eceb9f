"""What a loaded model takes of memory, part by part, in a state that a user has.

In:  a backbone and a head, loaded and settled, and what the process took before.
Out: `Footprint`, measured after a prompt and some rounds, before a benchmark makes its own buffers.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from headlong.bench.memory import resident_bytes
from headlong.engine.limits import EngineLimits
from headlong.heads.eagle3 import Eagle3Head
from headlong.models.traffic import bytes_of, linears_of, pass_bytes
from headlong.models.transformer import Backbone
from headlong.ops.op_set import Linear

NUM_POSITIONS = 2048

_NUM_ROUNDS = 192
"""After the prompt, so that what only a prompt needs is given back as in use."""


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
        return {
            "positions": self.num_positions,
            "resident_bytes": self.resident_bytes,
            "program_bytes": self.program_bytes,
            "weights_bytes": self.weights_bytes,
            "head_bytes": self.head_bytes,
            "kv_bytes": self.kv_bytes,
            "other_bytes": self.other_bytes,
            "share_of_weights": self.share_of_weights,
        }


def measure_footprint(backbone: Backbone, head: Eagle3Head, program_bytes: int) -> Footprint:
    """Run a long prompt in chunks, as the engine does, then rounds of one row; look at memory."""
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
    return Footprint(
        num_positions=cache.length,
        resident_bytes=resident_bytes(),
        program_bytes=program_bytes,
        weights_bytes=_backbone_bytes(backbone),
        head_bytes=bytes_of([head.fc, head.lm_head, *linears_of(head.layer)]),
        kv_bytes=cache.num_bytes + head_cache.num_bytes,
    )


def _backbone_bytes(backbone: Backbone) -> int:
    is_tied = backbone.embedding is backbone.lm_head.weight
    return pass_bytes(backbone) + (0 if is_tied else bytes_of([Linear(backbone.embedding)]))
