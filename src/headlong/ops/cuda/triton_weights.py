"""Weights inside Triton kernels: numbers as they are, or levels of 4 and 8 bits unpacked.

`weights` are numbers of 16 or 32 bits, (outputs, inputs), or levels as `packed_matrix` lays them
out, with `words` of scales beside them. FORM is (bits, group, whether there are minimums).
"""

import triton
import triton.language as tl


@triton.jit
def fetch_ahead(addresses):
    """Bring cache lines into L2: weights, while the kernel before is still running."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
        "=r,l",
        [addresses],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def fetch_weights(
    weights,
    first,
    num_outputs,
    stride,
    INPUTS: tl.constexpr,
    FORM: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    LINES: tl.constexpr,
):
    """Bring the first lines of 128 bytes of each output's weights into L2."""
    BITS: tl.constexpr = FORM[0]
    if BITS > 8:
        PER_LINE: tl.constexpr = 1024 // BITS
        o = tl.minimum(first + tl.arange(0, BLOCK_OUTPUTS), num_outputs - 1)
        k = tl.minimum(tl.arange(0, LINES) * PER_LINE, INPUTS - PER_LINE)
        fetch_ahead(weights + o.to(tl.int64)[:, None] * stride + k[None, :])
    else:
        BYTES: tl.constexpr = 8 * BITS
        line = tl.arange(0, BLOCK_OUTPUTS * BYTES // 128) * 128
        chunk = tl.minimum(tl.arange(0, LINES), INPUTS // 64 - 1)
        within = tl.minimum(first * BYTES + line, num_outputs * BYTES - 1)
        fetch_ahead(weights + chunk.to(tl.int64)[:, None] * stride * BYTES + within[None, :])


@triton.jit
def halves(word):
    """Return the two binary16 numbers of 32-bit words."""
    low = (word & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True)
    high = ((word >> 16) & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True)
    return low.to(tl.float32), high.to(tl.float32)


@triton.jit
def scaled_levels(
    levels, scale, minimum, DTYPE: tl.constexpr, ZERO: tl.constexpr, HAS_MINIMUMS: tl.constexpr
):
    """Return scale * (level - zero) + minimum, rounded once."""
    # A level below 256 in the low bits of 2**23 is that float plus the level: no conversion.
    number = (levels.to(tl.int32) | 0x4B000000).to(tl.float32, bitcast=True) - (8388608.0 + ZERO)
    if HAS_MINIMUMS:
        return tl.fma(number, scale, minimum).to(DTYPE)
    return (number * scale).to(DTYPE)


@triton.jit
def unpacked_chunk(
    levels,
    words,
    chunk,
    o,
    is_output,
    stride,
    DTYPE: tl.constexpr,
    FORM: tl.constexpr,
):
    """Return the weights of 64 inputs as two halves: (outputs, 32) each."""
    BITS: tl.constexpr = FORM[0]
    GROUP: tl.constexpr = FORM[1]
    HAS_MINIMUMS: tl.constexpr = FORM[2]
    WORDS: tl.constexpr = 2 if HAS_MINIMUMS or GROUP == 16 else 1
    ZERO: tl.constexpr = 0 if HAS_MINIMUMS else 2 ** (BITS - 1)
    column = tl.arange(0, 32)
    at = chunk.to(tl.int64) * stride + o
    mask = is_output[:, None]
    # High levels stay where they are, 16 times as large, and their scale is a 16th: the same
    # products, to the bit, without a shift.
    HIGH: tl.constexpr = 16 if BITS == 4 else 1
    if BITS == 4:
        pairs = tl.load(levels + at[:, None] * 32 + column[None, :], mask=mask, other=0)
        wide = pairs.to(tl.int32)
        first, second = wide & 15, wide & 240
    else:
        own = levels + at[:, None] * 64 + column[None, :]
        first = tl.load(own, mask=mask, other=0)
        second = tl.load(own + 32, mask=mask, other=0)
    own_words = words + chunk.to(tl.int64) * WORDS * stride + o
    scales = halves(tl.load(own_words, mask=is_output, other=0))
    if GROUP == 16:
        more = halves(tl.load(own_words + stride, mask=is_output, other=0))
        is_low = (column < 16)[None, :]
        scale = tl.where(is_low, scales[0][:, None], scales[1][:, None])
        other = tl.where(is_low, more[0][:, None], more[1][:, None])
        one = scaled_levels(first, scale, scale, DTYPE, ZERO, False)
        return one, scaled_levels(second, other, other, DTYPE, ZERO, False)
    minimums = scales
    if HAS_MINIMUMS:
        minimums = halves(tl.load(own_words + stride, mask=is_output, other=0))
    one = scaled_levels(first, scales[0][:, None], minimums[0][:, None], DTYPE, ZERO, HAS_MINIMUMS)
    high = scales[1][:, None] * (1 / HIGH)
    two = scaled_levels(second, high, minimums[1][:, None], DTYPE, ZERO * HIGH, HAS_MINIMUMS)
    return one, two


@triton.jit
def plain_weights(weights, o, k, is_output, stride, INPUTS: tl.constexpr, BLOCK_K: tl.constexpr):
    """Return the weights of some outputs and inputs, as they are stored."""
    mask = is_output[:, None]
    if INPUTS % BLOCK_K:
        mask = mask & (k < INPUTS)[None, :]
    return tl.load(weights + o.to(tl.int64)[:, None] * stride + k[None, :], mask=mask, other=0)


@triton.jit
def single_row(
    levels, words, o, k, stride, K: tl.constexpr, DTYPE: tl.constexpr, FORM: tl.constexpr
):
    """Return the weights of one output, number by number."""
    BITS: tl.constexpr = FORM[0]
    WORDS: tl.constexpr = 2 if FORM[2] or FORM[1] == 16 else 1
    ZERO: tl.constexpr = 0 if FORM[2] else 2 ** (BITS - 1)
    chunk, within = k // 64, k % 64
    at = chunk.to(tl.int64) * stride + o
    if BITS == 4:
        own = tl.load(levels + at * 32 + within % 32, mask=k < K, other=0)
        level = tl.where(within < 32, own & 15, own >> 4)
    else:
        level = tl.load(levels + at * 64 + within, mask=k < K, other=0)
    own_words = words + chunk.to(tl.int64) * WORDS * stride + o
    first, second = halves(tl.load(own_words, mask=k < K, other=0))
    scale = tl.where(within < 32, first, second)
    minimum = scale
    if WORDS == 2:
        third, fourth = halves(tl.load(own_words + stride, mask=k < K, other=0))
        if FORM[1] == 16:
            low = tl.where(within < 16, first, second)
            scale = tl.where(within < 32, low, tl.where(within < 48, third, fourth))
        else:
            minimum = tl.where(within < 32, third, fourth)
    return scaled_levels(level, scale, minimum, DTYPE, ZERO, FORM[2])
