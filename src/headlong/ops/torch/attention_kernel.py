"""The Triton kernel behind `torch_attention`: one program per row and key head.

Reads a row's keys and values once, block by block, with a running softmax. Only importable where
Triton is installed; whether it computes the right thing is checked before it is used.
"""

import triton
import triton.language as tl


@triton.jit
def attend_kernel(  # type: ignore[no-untyped-def]  # Triton reads the arguments, not Python
    query,
    keys,
    values,
    out,
    lengths,
    capacity,
    window,
    scale,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    QUERIES: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Mix one row's values for the queries that share one key head."""
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    length = tl.load(lengths + row)
    group = tl.arange(0, QUERIES)
    column = tl.arange(0, HEAD_DIM)
    query_at = ((row * KV_HEADS + kv_head) * GROUP + group[:, None]) * HEAD_DIM + column[None, :]
    is_query = group[:, None] < GROUP
    q = tl.load(query + query_at, mask=is_query, other=0.0)
    # 64-bit: the caches of two thousand rows are beyond 2**31 numbers.
    first = (row.to(tl.int64) * KV_HEADS + kv_head) * capacity * HEAD_DIM
    highest = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    mixed = tl.zeros([QUERIES, HEAD_DIM], tl.float32)
    for start in range(tl.maximum(length - window, 0), length, BLOCK):
        entry = start + tl.arange(0, BLOCK)
        is_entry = entry < length
        at = first + entry[:, None] * HEAD_DIM + column[None, :]
        k = tl.load(keys + at, mask=is_entry[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        scores = tl.where(is_entry[None, :], scores, float("-inf"))
        peak = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.exp2(scores - peak[:, None])
        shrink = tl.exp2(highest - peak)
        v = tl.load(values + at, mask=is_entry[:, None], other=0.0)
        mixed = mixed * shrink[:, None] + tl.dot(weights.to(v.dtype), v)
        total = total * shrink + tl.sum(weights, 1)
        highest = peak
    result = mixed / total[:, None]
    tl.store(out + query_at, result.to(out.dtype.element_ty), mask=is_query)
