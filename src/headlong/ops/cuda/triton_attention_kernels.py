"""Triton kernels of attention over pages: turn and keep keys, then attend.

A row's keys are read in blocks at absolute positions; each block is a softmax of its own, and
blocks are merged in order: in registers, or by whichever program finishes a row last. Sums of
shares are sums of integers, which no order changes. So a row's bits depend neither on the rows
beside it nor on how many programs share its keys. Slots and pages are as in `paged_blocks`.
"""

import triton
import triton.language as tl

HIDDEN = tl.constexpr(-1e30)
"""The score of a key that a row does not see."""

FULL_SHARE = tl.constexpr(1048576.0)
"""Shares are summed in units of 2 ** -20."""


# fmt: off
@triton.jit
def turn_kernel(
    qkv, queries, keys, values, query_gains, key_gains, eps, cosines, sines, positions, slots,
    page_table, table_stride, HEADS: tl.constexpr, KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr, HALF: tl.constexpr, WIDTH: tl.constexpr, PAGE: tl.constexpr,
    HAS_NORMS: tl.constexpr, PDL: tl.constexpr,
):
    # fmt: on
    """Norm and turn one head of one row; keys and values go to their page."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    d = tl.arange(0, WIDTH)
    is_number = d < HEAD_DIM
    own = qkv + (row * (HEADS + 2 * KV_HEADS) + head) * HEAD_DIM
    numbers = tl.load(own + d, mask=is_number, other=0)
    slot = tl.load(slots + row)
    # Rows that only fill up may stand where no slot has pages, and no angles are kept.
    position = tl.where(slot < 0, 0, tl.load(positions + row))
    if head < HEADS + KV_HEADS:
        other_at = tl.where(d < HALF, d + HALF, d - HALF)
        turns = d < 2 * HALF
        other = tl.load(own + other_at, mask=turns, other=0).to(tl.float32)
        wide = numbers.to(tl.float32)
        if HAS_NORMS:
            inverse = tl.rsqrt(tl.sum(wide * wide, 0) / HEAD_DIM + eps)
            gains = query_gains if head < HEADS else key_gains
            wide *= inverse * tl.load(gains + d, mask=is_number, other=0)
            other *= inverse * tl.load(gains + other_at, mask=turns, other=0)
        angle = position * HALF + d % HALF
        cosine = tl.load(cosines + angle, mask=turns, other=1)
        sine = tl.load(sines + angle, mask=turns, other=0)
        sine = tl.where(d < HALF, -sine, sine)
        numbers = tl.fma(other, sine, wide * cosine).to(numbers.dtype)
    if head < HEADS:
        tl.store(queries + (row * HEADS + head) * HEAD_DIM + d, numbers, mask=is_number)
    elif slot >= 0:
        page = tl.load(page_table + slot.to(tl.int64) * table_stride + position // PAGE)
        at = (page.to(tl.int64) * PAGE + position % PAGE) * KV_HEADS
        if head < HEADS + KV_HEADS:
            at = (at + head - HEADS) * HEAD_DIM
            tl.store(keys + at + d, numbers, mask=is_number)
        else:
            at = (at + head - HEADS - KV_HEADS) * HEAD_DIM
            tl.store(values + at + d, numbers, mask=is_number)


# fmt: off
@triton.jit
def kept_block(
    keys, values, own_pages, n, stop, kv_head,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, PAGE: tl.constexpr,
):
    # fmt: on
    """Return keys and values of positions n below `stop`, zeros for the others."""
    d = tl.arange(0, WIDTH)
    page = tl.load(own_pages + n // PAGE, mask=n < stop, other=0)
    at = ((page.to(tl.int64) * PAGE + n % PAGE) * KV_HEADS + kv_head) * HEAD_DIM
    mask = (n < stop)[:, None]
    if WIDTH != HEAD_DIM:
        mask = mask & (d < HEAD_DIM)[None, :]
    k = tl.load(keys + at[:, None] + d[None, :], mask=mask, other=0)
    v = tl.load(values + at[:, None] + d[None, :], mask=mask, other=0)
    return k, v


@triton.jit
def block_result(q, k, v, n, position, scale, window):
    """Attend to one block of keys: highest score, sum of shares, values mixed by them."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    is_seen = (n[None, :] <= position[:, None]) & (n[None, :] > position[:, None] - window)
    scores = tl.where(is_seen, scores, HIDDEN)
    highest = tl.max(scores, 1)
    shares = tl.exp2(scores - highest[:, None])
    total = tl.sum((shares * FULL_SHARE).to(tl.int32), 1).to(tl.float32)
    mixed = tl.dot(shares.to(v.dtype), v, input_precision="ieee")
    return highest, total, mixed


@triton.jit
def merged(highest, total, mixed, other_highest, other_total, other_mixed):
    """Return two results of a row as one."""
    peak = tl.maximum(highest, other_highest)
    old = tl.exp2(highest - peak)
    new = tl.exp2(other_highest - peak)
    total = tl.fma(other_total, new, total * old)
    factors = tl.broadcast_to(new[:, None], mixed.shape)
    mixed = tl.fma(other_mixed, factors, mixed * old[:, None])
    return peak, total, mixed


@triton.jit
def finished(total, mixed):
    """Return what was attended to; rows that are none have no shares."""
    return mixed / (tl.maximum(total, 1.0) / FULL_SHARE)[:, None]


# fmt: off
@triton.jit(do_not_specialize=["num_rows"])
def attend_kernel(
    queries, keys, values, out, positions, slots, page_table, num_rows, table_stride, scale, window,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, MEMBERS: tl.constexpr,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, PAGE: tl.constexpr,
    BLOCK: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr,
):
    # fmt: on
    """Attend from `TILE` rows and the heads that share one key head, slot after slot."""
    kv_head = tl.program_id(1)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    m = tl.arange(0, TILE * MEMBERS)
    row, member = tl.program_id(0) * TILE + m // MEMBERS, m % MEMBERS
    is_query = (row < num_rows) & (member < GROUP)
    d = tl.arange(0, WIDTH)
    mask = is_query[:, None] & (d < HEAD_DIM)[None, :]
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    slot = tl.load(slots + row, mask=is_query, other=-1)
    position = tl.load(positions + row, mask=is_query, other=0)
    at = (row.to(tl.int64) * HEADS + kv_head * GROUP + member)[:, None] * HEAD_DIM + d[None, :]
    q = tl.load(queries + at, mask=mask, other=0)
    tl.store(out + at, tl.zeros_like(q), mask=mask & (slot < 0)[:, None])
    own_slot = tl.max(slot, 0)
    while own_slot >= 0:
        is_own = slot == own_slot
        last = tl.max(tl.where(is_own, position, 0), 0)
        lowest = tl.min(tl.where(is_own, position, last), 0)
        own_pages = page_table + own_slot.to(tl.int64) * table_stride
        highest = tl.full((TILE * MEMBERS,), HIDDEN, tl.float32)
        total = tl.zeros((TILE * MEMBERS,), tl.float32)
        mixed = tl.zeros((TILE * MEMBERS, WIDTH), tl.float32)
        for block in range(tl.maximum(lowest - window + 1, 0) // BLOCK, last // BLOCK + 1):
            n = block * BLOCK + tl.arange(0, BLOCK)
            k, v = kept_block(
                keys, values, own_pages, n, last + 1, kv_head, KV_HEADS, HEAD_DIM, WIDTH, PAGE
            )
            one, two, three = block_result(q, k, v, n, position, scale, window)
            highest, total, mixed = merged(highest, total, mixed, one, two, three)
        result = finished(total, mixed).to(q.dtype)
        tl.store(out + at, result, mask=mask & is_own[:, None])
        own_slot = tl.max(tl.where(slot < own_slot, slot, -1), 0)
