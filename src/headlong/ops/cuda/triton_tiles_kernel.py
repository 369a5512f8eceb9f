"""The Triton kernels of products with many rows: tiles of rows and outputs.

`scale_kernel` writes rows times a norm's weights and 1 / rms of each; `tiles_kernel` multiplies.
Sums run over the inputs in order, as in `triton_rows_kernel`, and a row gets the same bits.
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
from headlong.ops.cuda.triton_weights import plain_weights, unpacked_chunk


# fmt: off
@triton.jit(do_not_specialize=["num_rows"])
def scale_kernel(
    x, beside, gains, scaled, inverses, num_rows, eps, K: tl.constexpr, PARTS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_K: tl.constexpr, PDL: tl.constexpr,
):
    # fmt: on
    """Write some rows, scaled, and their inverse norms; `PARTS` of them side by side."""
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    for part in tl.static_range(PARTS):
        source = beside if PARTS == 2 and part == 0 else x
        gram = tl.zeros((ROWS, ROWS), tl.float32)
        for start in tl.range(0, K, BLOCK_K, num_stages=3):
            k = start + tl.arange(0, BLOCK_K)
            raw = row_numbers(source, r, k, num_rows, K, BLOCK_K)
            gram = with_squares(gram, raw)
            read = scaled_rows(raw, gains + part * K, k, K, BLOCK_K)
            at = r.to(tl.int64)[:, None] * (PARTS * K) + (part * K + k)[None, :]
            tl.store(scaled + at, read, mask=(r < num_rows)[:, None] & (k < K)[None, :])
        inverse = inverse_rms(gram, eps, K)
        tl.store(inverses + r * PARTS + part, inverse, mask=r < num_rows)


# fmt: off
@triton.jit(do_not_specialize=["num_rows"])
def tiles_kernel(
    x, inverses, weights, words, bias, residual, out,
    num_rows, num_outputs, stride, out_stride,
    K: tl.constexpr, PARTS: tl.constexpr,
    IS_NORMED: tl.constexpr, GATE: tl.constexpr, HAS_BIAS: tl.constexpr, ADDS: tl.constexpr,
    FORM: tl.constexpr, ROWS: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr, BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr, TOGETHER: tl.constexpr, PDL: tl.constexpr,
):
    # fmt: on
    """Compute one tile; `TOGETHER` tiles of rows read the same weights before the next ones."""
    tile = tl.program_id(0)
    row_tiles = tl.cdiv(num_rows, ROWS)
    output_tiles = tl.cdiv(num_outputs, BLOCK_OUTPUTS)
    first = tile // (TOGETHER * output_tiles) * TOGETHER
    width = tl.minimum(row_tiles - first, TOGETHER)
    within = tile % (TOGETHER * output_tiles)
    r = (first + within % width) * ROWS + tl.arange(0, ROWS)
    o = within // width * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    is_row, is_output = r < num_rows, o < num_outputs
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    total = tl.zeros((ROWS, BLOCK_OUTPUTS), tl.float32)
    total_up = tl.zeros((ROWS, BLOCK_OUTPUTS), tl.float32)
    for part in tl.static_range(PARTS):
        acc, up = tile_sums(
            x, weights, words, o, is_output, r, num_rows, num_outputs, stride, part,
            K, PARTS, GATE, FORM, BLOCK_K, STAGES,
        )  # fmt: skip
        inverse = tl.full((ROWS,), 1.0, tl.float32)
        if IS_NORMED:
            inverse = tl.load(inverses + r * PARTS + part, mask=is_row, other=0)
        factors = tl.broadcast_to(inverse[:, None], total.shape)
        total = tl.fma(acc, factors, total)
        if GATE:
            total_up = tl.fma(up, factors, total_up)
    if HAS_BIAS:
        total += tl.load(bias + o, mask=is_output, other=0)[None, :]
    if GATE:
        total = gated(total, total_up, GATE)
    at = r.to(tl.int64)[:, None] * out_stride + o[None, :]
    mask = is_row[:, None] & is_output[None, :]
    if ADDS:
        total += tl.load(residual + at, mask=mask, other=0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=mask)


# fmt: off
@triton.jit
def tile_sums(
    x, weights, words, o, is_output, r, num_rows, num_outputs, stride, part,
    K: tl.constexpr, PARTS: tl.constexpr, GATE: tl.constexpr, FORM: tl.constexpr,
    BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):
    # fmt: on
    """Return the sums over all columns of a part: products, and those of `up`."""
    dtype: tl.constexpr = x.dtype.element_ty
    acc = tl.zeros((r.shape[0], o.shape[0]), tl.float32)
    up = tl.zeros((r.shape[0], o.shape[0]), tl.float32)
    for start in tl.range(0, K, BLOCK_K, num_stages=STAGES):
        if FORM[0] > 8:
            k = start + tl.arange(0, BLOCK_K)
            own = weights + part * K
            raw = row_numbers(x + part * K, r, k, num_rows, K, BLOCK_K, PARTS * K)
            w = plain_weights(own, o, k, is_output, stride, K, BLOCK_K)
            acc = tl.dot(raw, tl.trans(w), acc, input_precision="ieee")
            if GATE:
                w = plain_weights(own, o + num_outputs, k, is_output, stride, K, BLOCK_K)
                up = tl.dot(raw, tl.trans(w), up, input_precision="ieee")
        else:
            for i in tl.static_range(BLOCK_K // 64):
                at = start + i * 64
                chunk = (part * K + at) // 64
                pair = unpacked_chunk(weights, words, chunk, o, is_output, stride, dtype, FORM)
                second = pair
                if GATE:
                    second = unpacked_chunk(
                        weights, words, chunk, o + num_outputs, is_output, stride, dtype, FORM
                    )
                for half in tl.static_range(2):
                    k = at + half * 32 + tl.arange(0, 32)
                    raw = row_numbers(x + part * K, r, k, num_rows, K, 32, PARTS * K)
                    acc = tl.dot(raw, tl.trans(pair[half]), acc, input_precision="ieee")
                    if GATE:
                        up = tl.dot(raw, tl.trans(second[half]), up, input_precision="ieee")
    return acc, up
