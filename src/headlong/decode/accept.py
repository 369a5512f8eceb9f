"""Accept: decide how many draft tokens are accepted.

In:  a draft, the backbone's logits for its K+1 rows, the sequence's sampler. Out: a Verdict.
Knows nothing of heads, caches, stop conditions or requests.
"""

from collections.abc import Sequence

from headlong.arrays import FloatArray
from headlong.decode.outcome import Verdict
from headlong.decode.sampling import Sampler


def accept(draft_ids: Sequence[int], logits: FloatArray, sampler: Sampler) -> Verdict:
    """Pick row after row until a pick differs from the draft; `logits` is (K+1, V).

    Row 0 follows the last committed token, row d follows draft token d. Every pick joins the
    sampler's history.

    This is lossless: a row is used only if all draft tokens before it equal the picks. So its
    logits, position and history are exactly those of the plain loop, and `Sampler.pick` depends on
    nothing else. The draft determines how many rows can be used, never which token a row yields.
    This holds at any temperature, since the noise depends on the position only.
    """
    assert len(logits) == len(draft_ids) + 1, f"{len(logits)} rows for {len(draft_ids)} drafts"
    picks = []
    for draft_id, row in zip([*draft_ids, None], logits, strict=True):
        pick = sampler.pick(row)
        sampler.push(pick.token_id)
        picks.append(pick)
        if pick.token_id != draft_id:  # always in the last row, which has no draft token
            break
    return Verdict(tuple(picks), num_accepted=len(picks) - 1)
