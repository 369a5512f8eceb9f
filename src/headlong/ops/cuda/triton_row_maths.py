"""Rows inside Triton kernels: their numbers, their norms, the gates of MLPs.

With x the row and g the norm's weights, a product is W (x * g) times 1 / rms(x). The sum of squares
is the diagonal of x xᵀ, summed by the instructions of the product itself, in the order of inputs:
so it has the same bits in every kernel.
"""

import triton
import triton.language as tl

from headlong.ops.cuda.triton_weights import single_row


@triton.jit
def row_numbers(
    x, r, k, num_rows, K: tl.constexpr, BLOCK_K: tl.constexpr, STRIDE: tl.constexpr = 0
):
    """Return some columns of rows, zeros beyond: (rows, columns)."""
    stride: tl.constexpr = STRIDE if STRIDE else K
    mask = (r < num_rows)[:, None]
    if K % BLOCK_K:
        mask = mask & (k < K)[None, :]
    return tl.load(x + r.to(tl.int64)[:, None] * stride + k[None, :], mask=mask, other=0)


@triton.jit
def scaled_rows(raw, gains, k, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """Return rows times a norm's weights, rounded to their type."""
    gain = tl.load(gains + k, mask=k < K, other=0)
    return (raw.to(tl.float32) * gain[None, :]).to(raw.dtype)


@triton.jit
def with_squares(gram, raw):
    """Add x xᵀ; its diagonal becomes the rows' sums of squares."""
    return tl.dot(raw, tl.trans(raw), gram, input_precision="ieee")


@triton.jit
def inverse_rms(gram, eps, K: tl.constexpr):
    """Return 1 / rms of every row, from the diagonal."""
    r = tl.arange(0, gram.shape[0])
    squares = tl.sum(tl.where(r[:, None] == r[None, :], gram, 0.0), 0)
    return tl.rsqrt(tl.fma(squares, 1.0 / K, eps))


@triton.jit
def gated(gate, up, GATE: tl.constexpr):
    """Return activation(gate) * up: SiLU (1) or GELU by tanh (2)."""
    if GATE == 1:  # SiLU
        return gate * tl.sigmoid(gate) * up
    inner = 0.7978845608028654 * tl.fma(gate * gate * gate, 0.044715, gate)
    return gate * tl.sigmoid(2.0 * inner) * up  # gelu by tanh: (1 + tanh(a)) / 2 = sigmoid(2 a)


# fmt: off
@triton.jit
def norm_kernel(
    x, gains, residual, out, eps, K: tl.constexpr, WIDTH: tl.constexpr, ADDS: tl.constexpr,
    PDL: tl.constexpr,
):
    # fmt: on
    """Norm one row by itself, and add the residual: the same program whatever the rows beside."""
    row = tl.program_id(0).to(tl.int64)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    k = tl.arange(0, WIDTH)
    numbers = tl.load(x + row * K + k, mask=k < K, other=0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(numbers * numbers, 0) / K + eps)
    result = numbers * inverse * tl.load(gains + k, mask=k < K, other=0)
    if ADDS:
        result += tl.load(residual + row * K + k, mask=k < K, other=0).to(tl.float32)
    tl.store(out + row * K + k, result.to(out.dtype.element_ty), mask=k < K)


# fmt: off
@triton.jit
def embed_kernel(
    token_ids, table, words, out, scale, stride,
    K: tl.constexpr, WIDTH: tl.constexpr, FORM: tl.constexpr, PDL: tl.constexpr,
):
    # fmt: on
    """Look up one row of a table, in floats or levels."""
    row = tl.program_id(0).to(tl.int64)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    o = tl.load(token_ids + row).to(tl.int64)
    k = tl.arange(0, WIDTH)
    dtype: tl.constexpr = out.dtype.element_ty
    if FORM[0] > 8:
        numbers = tl.load(table + o * stride + k, mask=k < K, other=0)
    else:
        numbers = single_row(table, words, o, k, stride, K, dtype, FORM)
    tl.store(out + row * K + k, (numbers.to(tl.float32) * scale).to(dtype), mask=k < K)
