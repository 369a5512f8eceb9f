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
    position = tl.load(positions + row)
    slot = tl.load(slots + row)
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
def block_result(
    q, keys, values, own_pages, position, block, last, scale, window, kv_head,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # fmt: on
    """Attend to one block of keys: highest score, sum of shares, values mixed by them."""
    n = block * BLOCK + tl.arange(0, BLOCK)
    d = tl.arange(0, WIDTH)
    page = tl.load(own_pages + n // PAGE, mask=n <= last, other=0)
    at = ((page.to(tl.int64) * PAGE + n % PAGE) * KV_HEADS + kv_head) * HEAD_DIM
    mask = (n <= last)[:, None]
    if WIDTH != HEAD_DIM:
        mask = mask & (d < HEAD_DIM)[None, :]
    k = tl.load(keys + at[:, None] + d[None, :], mask=mask, other=0)
    v = tl.load(values + at[:, None] + d[None, :], mask=mask, other=0)
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
            one, two, three = block_result(
                q, keys, values, own_pages, position, block, last, scale, window, kv_head,
                KV_HEADS, HEAD_DIM, WIDTH, PAGE, BLOCK,
            )  # fmt: skip
            highest, total, mixed = merged(highest, total, mixed, one, two, three)
        result = finished(total, mixed).to(q.dtype)
        tl.store(out + at, result, mask=mask & is_own[:, None])
        own_slot = tl.max(tl.where(slot < own_slot, slot, -1), 0)


# fmt: off
@triton.jit
def attend_apart_kernel(
    queries, keys, values, out, partial, heights, counters,
    positions, slots, page_table, table_stride, scale, window,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, MEMBERS: tl.constexpr,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, PAGE: tl.constexpr,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr, SHARES: tl.constexpr, PDL: tl.constexpr,
):
    # fmt: on
    """Attend from one row in `SHARES` programs; the last one to finish merges the blocks."""
    row, kv_head, own = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    m = tl.arange(0, MEMBERS)
    d = tl.arange(0, WIDTH)
    mask = (m < GROUP)[:, None] & (d < HEAD_DIM)[None, :]
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    slot = tl.load(slots + row)
    at = (row.to(tl.int64) * HEADS + kv_head * GROUP + m)[:, None] * HEAD_DIM + d[None, :]
    last = tl.load(positions + row)
    lowest = tl.maximum(last - window + 1, 0) // BLOCK
    num_blocks = last // BLOCK + 1 - lowest
    if slot < 0:
        num_blocks = 0
        if own == 0:
            zeros = tl.zeros((MEMBERS, WIDTH), queries.dtype.element_ty)
            tl.store(out + at, zeros, mask=mask)
    if own < num_blocks:
        q = tl.load(queries + at, mask=mask, other=0)
        position = tl.zeros_like(m) + last
        own_pages = page_table + slot.to(tl.int64) * table_stride
        place = (row.to(tl.int64) * KV_HEADS + kv_head) * BLOCKS
        for index in range(own, num_blocks, SHARES):
            one, two, three = block_result(
                q, keys, values, own_pages, position, lowest + index, last, scale, window, kv_head,
                KV_HEADS, HEAD_DIM, WIDTH, PAGE, BLOCK,
            )  # fmt: skip
            put = (place + index) * GROUP + m
            tl.store(heights + put * 2, one, mask=m < GROUP)
            tl.store(heights + put * 2 + 1, two, mask=m < GROUP)
            tl.store(partial + put[:, None] * WIDTH + d[None, :], three, mask=mask)
        tl.debug_barrier()
        counter = counters + row * KV_HEADS + kv_head
        num_done = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") + 1
        if num_done == tl.minimum(num_blocks, SHARES):
            tl.store(counter, 0)
            result = merged_blocks(partial, heights, place, num_blocks, GROUP, MEMBERS, WIDTH)
            tl.store(out + at, result.to(queries.dtype.element_ty), mask=mask)


@triton.jit
def merged_blocks(
    partial,
    heights,
    place,
    num_blocks,
    GROUP: tl.constexpr,
    MEMBERS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Return what a row attended to, from the results of its blocks, in order."""
    m = tl.arange(0, MEMBERS)
    d = tl.arange(0, WIDTH)
    highest = tl.full((MEMBERS,), HIDDEN, tl.float32)
    total = tl.zeros((MEMBERS,), tl.float32)
    mixed = tl.zeros((MEMBERS, WIDTH), tl.float32)
    for index in tl.range(0, num_blocks, num_stages=1):
        put = (place + index) * GROUP + m
        # Past the first cache, which may hold what stood there before other programs wrote.
        one = tl.load(heights + put * 2, mask=m < GROUP, other=0, cache_modifier=".cg")
        two = tl.load(heights + put * 2 + 1, mask=m < GROUP, other=0, cache_modifier=".cg")
        own = partial + put[:, None] * WIDTH + d[None, :]
        three = tl.load(own, mask=(m < GROUP)[:, None], other=0, cache_modifier=".cg")
        highest, total, mixed = merged(highest, total, mixed, one, two, three)
    return finished(total, mixed)
