"""The kernels of Apple's GPUs: rows times a matrix, every row as if it were alone.

In:  rows, and a matrix of floats or of 4- or 8-bit levels. Out: products.
Each of 32 lanes adds up every 32nd run of eight numbers, in order and with fused steps that no
compiler can regroup; then the lanes are added. How many rows are read beside a row (`ROWS`) has no
part in that, so weights are read once for up to eight rows and no row affects another. Whether a
device keeps to this is measured before a kernel is used (`ops/mlx/weights.py`).
All loops but the one over inputs are unrolled: an array that a loop indexes would lie in memory.
"""

from functools import cache
from typing import Any

import mlx.core as mx

MOST_ROWS = 8
"""Rows that share one reading of the weights."""

BITS = (4, 8)
"""Of the levels that the kernel reads; others go through MLX's own."""

_LANES, _SIMD_GROUPS, _OUTPUTS = 32, 2, 4
"""Outputs are those of one group of lanes."""

_FRAME = """
    constexpr int RUN = 8;
    const int num_rows = x_shape[0], inputs = x_shape[1], outputs = weights_shape[0];
    const int lane = thread_index_in_simdgroup;
    const int group = threadgroup_position_in_grid.y * SIMD_GROUPS
        + simdgroup_index_in_threadgroup;
    const int first_output = group * OUTPUTS;
    const int first_row = threadgroup_position_in_grid.z * ROWS;
    float total[OUTPUTS][ROWS] = {};
    for (int k = lane * RUN; k < inputs; k += 32 * RUN) {
        float weight[OUTPUTS][RUN];
        %s
        #pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const size_t row = min(first_row + r, num_rows - 1);
            float value[RUN];
            #pragma unroll
            for (int j = 0; j < RUN; j++) {
                value[j] = k + j < inputs ? float(x[row * inputs + k + j]) : 0.0f;
            }
            %s
        }
    }
    #pragma unroll
    for (int o = 0; o < OUTPUTS; o++) {
        #pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float whole = simd_sum(total[o][r]);
            if (lane == 0 && first_output + o < outputs && first_row + r < num_rows) {
                y[size_t(first_row + r) * outputs + first_output + o] = T(whole);
            }
        }
    }
"""

FLOATS = _FRAME % (
    """
        #pragma unroll
        for (int o = 0; o < OUTPUTS; o++) {
            const size_t output = min(first_output + o, outputs - 1);
            #pragma unroll
            for (int j = 0; j < RUN; j++) {
                weight[o][j] = k + j < inputs ? float(weights[output * inputs + k + j]) : 0.0f;
            }
        }""",
    """
            #pragma unroll
            for (int o = 0; o < OUTPUTS; o++) {
                #pragma unroll
                for (int j = 0; j < RUN; j++) {
                    total[o][r] = fma(weight[o][j], value[j], total[o][r]);
                }
            }""",
)
"""Of a matrix of floats."""

LEVELS = _FRAME % (
    """
        float scale[OUTPUTS], bias[OUTPUTS];
        constexpr int IN_WORD = 32 / BITS;
        #pragma unroll
        for (int o = 0; o < OUTPUTS; o++) {
            const size_t output = min(first_output + o, outputs - 1);
            const size_t place = output * inputs + k;
            #pragma unroll
            for (int w = 0; w < RUN / IN_WORD; w++) {
                const uint word = weights[place / IN_WORD + w];
                #pragma unroll
                for (int j = 0; j < IN_WORD; j++) {
                    weight[o][w * IN_WORD + j] = float((word >> (j * BITS)) & ((1u << BITS) - 1));
                }
            }
            scale[o] = float(scales[place / GROUP]);
            bias[o] = float(biases[place / GROUP]);
        }""",
    """
            float sum = 0.0f;
            #pragma unroll
            for (int j = 0; j < RUN; j++) {
                sum += value[j];
            }
            #pragma unroll
            for (int o = 0; o < OUTPUTS; o++) {
                float dot = 0.0f;
                #pragma unroll
                for (int j = 0; j < RUN; j++) {
                    dot = fma(weight[o][j], value[j], dot);
                }
                total[o][r] = fma(scale[o], dot, fma(bias[o], sum, total[o][r]));
            }""",
)
"""Of levels with a scale and a bias for every `GROUP`."""


def multiply_rows(x: Any, parts: tuple[Any, ...], bits: int, group_size: int) -> Any:
    """Multiply rows with a matrix: (N, inputs) → (N, outputs)."""
    num_rows, num_outputs = len(x), parts[0].shape[0]
    rows = next(count for count in (1, 2, 4, MOST_ROWS) if count >= min(num_rows, MOST_ROWS))
    sizes = {"ROWS": rows, "OUTPUTS": _OUTPUTS, "SIMD_GROUPS": _SIMD_GROUPS}
    if bits:
        sizes |= {"BITS": bits, "GROUP": group_size}
    width = _LANES * _SIMD_GROUPS
    made: Any = _kernel(*(part.dtype for part in parts))(
        inputs=[x, *parts],
        template=[("T", x.dtype), *sizes.items()],
        grid=(width, -(-num_outputs // (_OUTPUTS * _SIMD_GROUPS)), -(-num_rows // rows)),
        threadgroup=(width, 1, 1),
        output_shapes=[(num_rows, num_outputs)],
        output_dtypes=[x.dtype],
    )
    return made[0]


@cache
def _kernel(*types: Any) -> Any:
    """Return the kernel for a matrix whose parts have these types.

    MLX compiles a kernel anew when one of the same name had inputs of other types.
    """
    names = [str(one).rpartition(".")[2] for one in types]
    has_levels = len(types) > 1
    return mx.fast.metal_kernel(
        name="_".join(["headlong", *names]),
        input_names=["x", "weights", *(["scales", "biases"] if has_levels else [])],
        output_names=["y"],
        source=LEVELS if has_levels else FLOATS,
    )
