"""The plain loop: one token, one pass. The oracle that every faster path must equal, bit for bit.

No drafter, no chunks, no batch: the prompt in one pass, then each token alone. Also the baseline
that speed-ups are measured against.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from headlong.decode.sampling import Pick, Sampler
from headlong.models.transformer import Backbone


def generate_plain(
    backbone: Backbone, prompt_ids: Sequence[int], sampler: Sampler
) -> Iterator[Pick]:
    """Yield the backbone's own tokens one by one, without end; the caller stops."""
    cache = backbone.make_cache()
    token_ids = np.array(prompt_ids)
    while True:
        hidden = backbone.forward([token_ids], [cache], all_or_none=True)
        cache.commit(len(token_ids))
        pick = sampler.pick(backbone.logits(hidden.normed[-1:])[0])
        sampler.push(pick.token_id)
        yield pick
        token_ids = np.array([pick.token_id])
