"""Prefill: run the prompt through the backbone once, chunk by chunk, and pick the first token.

The drafter sees every chunk's hidden rows right after the pass that made them, so a head never
makes the prompt run a second time. How the prompt is cut changes no bit of the result.
"""

import time

import numpy as np

from headlong.decode.sampling import Pick
from headlong.decode.sequence import DecodingSequence
from headlong.drafters.drafter import Drafter, Settled
from headlong.models.transformer import Backbone

DEFAULT_CHUNK = 256
"""Prompt tokens per pass: bounds the memory that hidden rows take."""


def prefill(
    sequence: DecodingSequence,
    backbone: Backbone,
    drafter: Drafter | None,
    chunk_size: int = DEFAULT_CHUNK,
) -> Pick:
    """Process the prompt and return the first token, already part of the sequence."""
    prompt = np.array(sequence.token_ids)
    taps = drafter.tap_layers if drafter is not None and sequence.draft_state is not None else ()
    for start in range(0, len(prompt), chunk_size):
        began_s = time.perf_counter()
        chunk = prompt[start : start + chunk_size]
        hidden = backbone.forward([chunk], [sequence.cache], taps)
        sequence.cache.commit(len(chunk))
        next_ids = prompt[start + 1 : start + 1 + len(chunk)]
        is_last = start + chunk_size >= len(prompt)
        if is_last:
            pick = sequence.sampler.pick(backbone.logits(hidden.normed[-1:])[0])
            sequence.sampler.push(pick.token_id)
            sequence.token_ids.append(pick.token_id)
            next_ids = np.append(next_ids, pick.token_id)
        passed_s = time.perf_counter()
        sequence.timings.prefill_s += passed_s - began_s
        if drafter is not None and sequence.draft_state is not None:
            drafter.observe([Settled(sequence.draft_state, chunk, hidden, next_ids)])
            sequence.timings.prefill_head_s += time.perf_counter() - passed_s
    return pick
