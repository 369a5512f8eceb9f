"""The Triton kernel of products with few rows: norm, multiply, bias, gate, residual in one launch.

A number of the result is one sum over the inputs, in order, in one float32 accumulator, whatever
the tile: so a row's bits do not depend on the rows beside it, nor on `triton_tiles_kernel`, which
computes the same for many rows. Names: o outputs, k inputs, r rows.
"""

import triton
import triton.language as tl

from headlong.ops.cuda.triton_row_maths import (
    gated,
    inverse_rms,
    row_numbers,
    scaled_rows,
    with_squares,
)
from headlong.ops.cuda.triton_weights import fetch_weights, plain_weights, unpacked_chunk


# fmt: off
@triton.jit(do_not_specialize=["num_rows"])
def rows_kernel(
    x, beside, gains, weights, words, bias, residual, out, num_rows, num_outputs, stride,
    out_stride, eps, K: tl.constexpr, PARTS: tl.constexpr, IS_NORMED: tl.constexpr,
    GATE: tl.constexpr, HAS_BIAS: tl.constexpr, ADDS: tl.constexpr, FORM: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr, BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr, LINES: tl.constexpr, PDL: tl.constexpr,
):
    # fmt: on
    """Compute one block of outputs for at most `ROWS` rows."""
    first = tl.program_id(0) * BLOCK_OUTPUTS
    o = first + tl.arange(0, BLOCK_OUTPUTS)
    is_output = o < num_outputs
    r = tl.arange(0, ROWS)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        if LINES:
            fetch_weights(
                weights, first, num_outputs, stride, PARTS * K, FORM, BLOCK_OUTPUTS, LINES
            )
        tl.extra.cuda.gdc_wait()
    at = r.to(tl.int64)[None, :] * out_stride + o[:, None]
    mask = is_output[:, None] & (r < num_rows)[None, :]
    # Read first: the loop hides how long it takes.
    added = tl.load(residual + at, mask=mask, other=0).to(tl.float32) if ADDS else 0.0
    total = tl.zeros((BLOCK_OUTPUTS, ROWS), tl.float32)
    total_up = tl.zeros((BLOCK_OUTPUTS, ROWS), tl.float32)
    for part in tl.static_range(PARTS):
        source = beside if PARTS == 2 and part == 0 else x
        acc, up, gram = summed(
            source, gains + part * K, weights, words, o, is_output, r, num_rows, num_outputs,
            stride, part, K, IS_NORMED, GATE, FORM, BLOCK_K, STAGES,
        )  # fmt: skip
        inverse = tl.full((ROWS,), 1.0, tl.float32)
        if IS_NORMED:
            inverse = inverse_rms(gram, eps, K)
        factors = tl.broadcast_to(inverse[None, :], total.shape)
        total = tl.fma(acc, factors, total)
        total_up = tl.fma(up, factors, total_up)
    if HAS_BIAS:
        total += tl.load(bias + o, mask=is_output, other=0)[:, None]
    if GATE:
        total = gated(total, total_up, GATE)
    if ADDS:
        total += added
    tl.store(out + at, total.to(out.dtype.element_ty), mask=mask)


# fmt: off
@triton.jit
def summed(
    source, gains, weights, words, o, is_output, r, num_rows, num_outputs, stride, part,
    K: tl.constexpr, IS_NORMED: tl.constexpr, GATE: tl.constexpr, FORM: tl.constexpr,
    BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):
    # fmt: on
    """Return the sums over all columns of a part: products, those of `up`, and squares."""
    # Levels stand on the right: there no two warps unpack the same ones.
    IS_LEVELS: tl.constexpr = FORM[0] <= 8
    HEIGHT: tl.constexpr = r.shape[0] if IS_LEVELS else o.shape[0]
    WIDTH: tl.constexpr = o.shape[0] if IS_LEVELS else r.shape[0]
    acc = tl.zeros((HEIGHT, WIDTH), tl.float32)
    up = tl.zeros((HEIGHT, WIDTH), tl.float32)
    gram = tl.zeros((r.shape[0], r.shape[0]), tl.float32)
    for start in tl.range(0, K, BLOCK_K, num_stages=STAGES):
        if FORM[0] > 8:
            k = start + tl.arange(0, BLOCK_K)
            own = weights + part * K
            raw = row_numbers(source, r, k, num_rows, K, BLOCK_K)
            read = raw
            if IS_NORMED:
                gram = with_squares(gram, raw)
                read = scaled_rows(raw, gains, k, K, BLOCK_K)
            w = plain_weights(own, o, k, is_output, stride, K, BLOCK_K)
            acc = tl.dot(w, tl.trans(read), acc, input_precision="ieee")
            if GATE:
                w = plain_weights(own, o + num_outputs, k, is_output, stride, K, BLOCK_K)
                up = tl.dot(w, tl.trans(read), up, input_precision="ieee")
        else:
            for i in tl.static_range(BLOCK_K // 64):
                acc, up, gram = with_chunk(
                    acc, up, gram, source, gains, weights, words, o, is_output, r, num_rows,
                    num_outputs, stride, start + i * 64, part, K, IS_NORMED, GATE, FORM,
                )  # fmt: skip
    if IS_LEVELS:
        acc, up = tl.trans(acc), tl.trans(up)
    return acc, up, gram


# fmt: off
@triton.jit
def with_chunk(
    acc, up, gram, source, gains, weights, words, o, is_output, r, num_rows,
    num_outputs, stride, start, part,
    K: tl.constexpr, IS_NORMED: tl.constexpr, GATE: tl.constexpr, FORM: tl.constexpr,
):
    # fmt: on
    """Return the sums with a chunk of 64 columns added, of weights in levels."""
    dtype: tl.constexpr = source.dtype.element_ty
    chunk = (part * K + start) // 64
    pair = unpacked_chunk(weights, words, chunk, o, is_output, stride, dtype, FORM)
    second = pair
    if GATE:
        second = unpacked_chunk(
            weights, words, chunk, o + num_outputs, is_output, stride, dtype, FORM
        )
    for half in tl.static_range(2):
        k = start + half * 32 + tl.arange(0, 32)
        raw = row_numbers(source, r, k, num_rows, K, 32)
        read = raw
        if IS_NORMED:
            gram = with_squares(gram, raw)
            read = scaled_rows(raw, gains, k, K, 32)
        acc = tl.dot(read, tl.trans(pair[half]), acc, input_precision="ieee")
        if GATE:
            up = tl.dot(read, tl.trans(second[half]), up, input_precision="ieee")
    return acc, up, gram
