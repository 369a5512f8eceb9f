"""The Triton kernel of attention for few rows: many programs share one row's keys.

Turns queries and keys itself where heads have no norms: keys of this pass are taken from where they
were projected, all others from their pages. The result of every block goes to memory; whichever
program finishes a row last merges them in order, as `attend_kernel` does in registers.
"""

import triton
import triton.language as tl

from headlong.ops.cuda.triton_attention_kernels import (
    HIDDEN,
    block_result,
    finished,
    kept_block,
    merged,
)


# fmt: off
@triton.jit
def attend_apart_kernel(
    source, keys, values, out, partial, heights, counters, cosines, sines,
    positions, slots, page_table, table_stride, scale, window,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, MEMBERS: tl.constexpr,
    HEAD_DIM: tl.constexpr, HALF: tl.constexpr, WIDTH: tl.constexpr, PAGE: tl.constexpr,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr, SHARES: tl.constexpr, MATES: tl.constexpr,
    PDL: tl.constexpr,
):
    # fmt: on
    """Attend from one row and the heads of one key head; `MATES` rows at most turn here."""
    row, kv_head, own = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    m = tl.arange(0, MEMBERS)
    d = tl.arange(0, WIDTH)
    mask = (m < GROUP)[:, None] & (d < HEAD_DIM)[None, :]
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    slot = tl.load(slots + row)
    last = tl.load(positions + row)
    lowest = tl.maximum(last - window + 1, 0) // BLOCK
    num_blocks = last // BLOCK + 1 - lowest
    at = (row.to(tl.int64) * HEADS + kv_head * GROUP + m)[:, None] * HEAD_DIM + d[None, :]
    if slot < 0:
        num_blocks = 0
        if own == 0:
            tl.store(out + at, tl.zeros((MEMBERS, WIDTH), out.dtype.element_ty), mask=mask)
    if own < num_blocks:
        place = (row.to(tl.int64) * KV_HEADS + kv_head) * BLOCKS
        own_pages = page_table + slot.to(tl.int64) * table_stride
        write_blocks(
            source, keys, values, partial, heights, cosines, sines, slots, own_pages, slot, row,
            kv_head, own, last, lowest, num_blocks, place, scale, window,
            HEADS, KV_HEADS, MEMBERS, HEAD_DIM, HALF, WIDTH, PAGE, BLOCK, SHARES, MATES,
        )  # fmt: skip
        tl.debug_barrier()
        counter = counters + row * KV_HEADS + kv_head
        num_done = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") + 1
        if num_done == tl.minimum(num_blocks, SHARES):
            tl.store(counter, 0)
            result = merged_blocks(partial, heights, place, num_blocks, GROUP, MEMBERS, WIDTH)
            tl.store(out + at, result.to(out.dtype.element_ty), mask=mask)


# fmt: off
@triton.jit
def write_blocks(
    source, keys, values, partial, heights, cosines, sines, slots, own_pages, slot, row,
    kv_head, own, last, lowest, num_blocks, place, scale, window,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, MEMBERS: tl.constexpr, HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr, WIDTH: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr,
    SHARES: tl.constexpr, MATES: tl.constexpr,
):
    # fmt: on
    """Write the results of every `SHARES`-th block, and the row's own key and value."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    ALL: tl.constexpr = (HEADS + 2 * KV_HEADS) * HEAD_DIM if MATES else HEADS * HEAD_DIM
    m = tl.arange(0, MEMBERS)
    d = tl.arange(0, WIDTH)
    mask = (m < GROUP)[:, None] & (d < HEAD_DIM)[None, :]
    own_queries = source + row.to(tl.int64) * ALL + ((kv_head * GROUP + m) * HEAD_DIM)[:, None]
    num_kept = last + 1
    if MATES:
        q = turned(own_queries, tl.zeros_like(m)[:, None] + last, mask, cosines, sines, HALF, WIDTH)
        mate = tl.arange(0, MATES)
        before = tl.load(slots + mate, mask=mate < row, other=-1) == slot
        num_kept = last - tl.sum(before.to(tl.int32), 0)
    else:
        q = tl.load(own_queries + d[None, :], mask=mask, other=0)
    new_keys = source + (HEADS + kv_head) * HEAD_DIM
    new_values = new_keys + KV_HEADS * HEAD_DIM
    position = tl.zeros_like(m) + last
    for index in range(own, num_blocks, SHARES):
        n = (lowest + index) * BLOCK + tl.arange(0, BLOCK)
        k, v = kept_block(
            keys, values, own_pages, n, num_kept, kv_head, KV_HEADS, HEAD_DIM, WIDTH, PAGE
        )
        if MATES and (lowest + index + 1) * BLOCK > num_kept:
            is_new = ((n >= num_kept) & (n <= last))[:, None] & (d < HEAD_DIM)[None, :]
            at = (row.to(tl.int64) - last + n)[:, None] * ALL
            k = tl.where(
                is_new, turned(new_keys + at, n[:, None], is_new, cosines, sines, HALF, WIDTH), k
            )
            v = tl.where(is_new, tl.load(new_values + at + d[None, :], mask=is_new, other=0), v)
        one, two, three = block_result(q, k, v, n, position, scale, window)
        put = (place + index) * GROUP + m
        tl.store(heights + put * 2, one, mask=m < GROUP)
        tl.store(heights + put * 2 + 1, two, mask=m < GROUP)
        tl.store(partial + put[:, None] * WIDTH + d[None, :], three, mask=mask)
    if MATES and own == 0:
        page = tl.load(own_pages + last // PAGE)
        to = ((page.to(tl.int64) * PAGE + last % PAGE) * KV_HEADS + kv_head) * HEAD_DIM
        single = tl.arange(0, 1)[:, None]
        is_number = (single == 0) & (d < HEAD_DIM)[None, :]
        at = row.to(tl.int64) * ALL + single
        k = turned(new_keys + at, single + last, is_number, cosines, sines, HALF, WIDTH)
        v = tl.load(new_values + at + d[None, :], mask=is_number, other=0)
        tl.store(keys + to + single + d[None, :], k, mask=is_number)
        tl.store(values + to + single + d[None, :], v, mask=is_number)


@triton.jit
def turned(own, position, mask, cosines, sines, HALF: tl.constexpr, WIDTH: tl.constexpr):
    """Return heads turned by their positions, as `turn_kernel` does: (heads, numbers)."""
    d = tl.arange(0, WIDTH)[None, :]
    turns = mask & (d < 2 * HALF)
    numbers = tl.load(own + d, mask=mask, other=0)
    other = tl.load(own + tl.where(d < HALF, d + HALF, d - HALF), mask=turns, other=0)
    angle = position * HALF + d % HALF
    cosine = tl.load(cosines + angle, mask=turns, other=1)
    sine = tl.load(sines + angle, mask=turns, other=0)
    sine = tl.where(d < HALF, -sine, sine)
    return tl.fma(other.to(tl.float32), sine, numbers.to(tl.float32) * cosine).to(numbers.dtype)


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
