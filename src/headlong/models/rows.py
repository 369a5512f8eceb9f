"""Lay out the rows of a pass: which token goes where, in which sequence's cache."""

from collections.abc import Sequence

import numpy as np

from headlong.arrays import IntArray
from headlong.cache.sequence_state import SequenceState
from headlong.ops.op_set import Rows, Span


def append_rows(
    caches: Sequence[SequenceState], token_ids: Sequence[IntArray], *, all_or_none: bool = False
) -> Rows:
    """Append each sequence's tokens to its state as pending rows and return the pass's rows."""
    spans: list[Span] = []
    first_row = 0
    for cache, ids in zip(caches, token_ids, strict=True):
        spans.append(Span(first_row, len(ids), cache.append(len(ids), all_or_none=all_or_none)))
        first_row += len(ids)
    joined = token_ids[0] if len(token_ids) == 1 else np.concatenate(token_ids)
    return Rows(joined, tuple(spans))
