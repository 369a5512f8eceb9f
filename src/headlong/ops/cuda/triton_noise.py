"""The Triton kernel of the noise that picks tokens: `noise.gumbel` for many rows in one launch.

In plain torch it is forty launches over numbers of 64 bits, which cost a round of many sampled
streams more than the model does. Integers are exact; both logarithms are the card's own, the same
for every pass.
"""

import triton
import triton.language as tl

GOLDEN = tl.constexpr(0x9E3779B97F4A7C15 - 2**64)  # as signed words, which wrap around alike
FIRST = tl.constexpr(0xBF58476D1CE4E5B9 - 2**64)
SECOND = tl.constexpr(0x94D049BB133111EB - 2**64)


# fmt: off
@triton.jit(
    do_not_specialize=["stream_stride", "position_stride"],
    do_not_specialize_on_alignment=["streams", "positions"],
)
def noise_kernel(
    streams, positions, token_ids, out, stream_stride, position_stride, num_columns,
    HAS_IDS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):
    # fmt: on
    """Write the noise of some columns of one row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < num_columns
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    stream = tl.load(streams + row * stream_stride)
    position = tl.load(positions + row * position_stride).to(tl.int64)
    token_id = column.to(tl.int64)
    if HAS_IDS:
        token_id = tl.load(token_ids + column, mask=mask, other=0)
    key = mixed(stream + (position + 1) * GOLDEN)
    bits = mixed(key + (token_id + 1) * GOLDEN)
    uniform = (shifted(bits, 12).to(tl.float64) + 0.5) * (2.0**-52)
    noise = -tl.log(-tl.log(uniform))
    tl.store(out + row * num_columns + column, noise, mask=mask)


@triton.jit
def mixed(word):
    """Return the finaliser of splitmix64."""
    word = (word ^ shifted(word, 30)) * FIRST
    word = (word ^ shifted(word, 27)) * SECOND
    return word ^ shifted(word, 31)


@triton.jit
def shifted(word, PLACES: tl.constexpr):
    """Shift to the right as if words had no sign."""
    return (word >> PLACES) & ((1 << (64 - PLACES)) - 1)
