// Matrix × rows: every weight is loaded and unpacked once for a block of rows.
//
// What a row yields is a fixed sequence of operations per output: exact integer sums per group, then
// one float accumulation in the order of the groups. Neither the number of rows in a block nor the
// tile range enters it, which is all that batch invariance needs.
#pragma once

#include <cstring>
#include <utility>

#include "formats.hpp"

namespace headlong {

// Bytes ahead of the weights in use. From memory 512 to 4096 measured alike; 8-bit heads that still
// lie in the third cache came 20 % sooner with the longer reach.
constexpr int kPrefetch4Bit = 2048;
constexpr int kPrefetch8Bit = 4096;
constexpr int kPrefetchFloat = 2048;

template <class V>
void store_tile(typename V::F value, float* out, int64_t num_valid) {
    if (num_valid >= V::W) {
        V::store(out, value);
        return;
    }
    float lanes[V::W];
    V::store(lanes, value);
    std::memcpy(out, lanes, num_valid * sizeof(float));
}

// Prefetch the `kBytes` that lie `kAhead` bytes further on in the stream.
template <int kBytes, int kAhead>
void prefetch_ahead(const uint8_t* p) {
    for (int line = 0; line < kBytes; line += 64) __builtin_prefetch(p + kAhead + line);
}

// A quantised tile times N rows. `Dot` is the instruction set, kBits is 4 or 8.
template <class Dot, int kBits, int N>
void multiply_quantised(
    const Matrix& m, int64_t index, const ActGroup* act, size_t stride, float* y, size_t ldy) {
    using V = typename Dot::V;
    constexpr int kWeightBytes = V::W * kGroup * kBits / 8;
    constexpr int kScales = kBits == 4 ? 2 * V::W : V::W;
    const uint8_t* pair = m.tile(index);
    const int64_t num_groups = m.num_groups();

    typename V::F acc[N];
    for (int r = 0; r < N; ++r) acc[r] = V::zero();
    const auto add_group = [&](const uint16_t* scales, const uint8_t* weights, const ActGroup* group) {
        typename V::I sums[N];
        if constexpr (kBits == 4) {
            Dot::template q4<N>(weights, group, stride, sums);
        } else {
            Dot::template q8<N>(weights, group, stride, sums);
        }
        const typename V::F scale = V::load_f16(scales);
        for (int r = 0; r < N; ++r) {
            const ActGroup& row = group[r * stride];
            acc[r] = V::fma(V::to_float(sums[r]), V::mul(scale, V::set1(row.scale)), acc[r]);
            if constexpr (kBits == 4) {
                acc[r] = V::fma(V::load_f16(scales + V::W), V::set1(row.sum), acc[r]);
            }
        }
    };
    for (int64_t g = 0; g < num_groups; g += 2) {
        const auto* scales = reinterpret_cast<const uint16_t*>(pair);
        const uint8_t* weights = pair + 2 * kScales * sizeof(uint16_t);
        prefetch_ahead<2 * (kScales * 2 + kWeightBytes), kBits == 4 ? kPrefetch4Bit : kPrefetch8Bit>(pair);
        add_group(scales, weights, act + g);
        if (g + 1 < num_groups) add_group(scales + kScales, weights + kWeightBytes, act + g + 1);
        pair = weights + 2 * kWeightBytes;
    }
    const int64_t num_valid = m.outputs - index * V::W;
    for (int r = 0; r < N; ++r) store_tile<V>(acc[r], y + r * ldy, num_valid);
}

template <class V, Format kFormat>
typename V::F load_weights(const uint8_t* p) {
    if constexpr (kFormat == Format::f32) return V::load(reinterpret_cast<const float*>(p));
    if constexpr (kFormat == Format::f16) return V::load_f16(reinterpret_cast<const uint16_t*>(p));
    if constexpr (kFormat == Format::bf16) return V::load_bf16(reinterpret_cast<const uint16_t*>(p));
}

// A float tile times N rows; two sums by the parity of the input hide the latency of one row.
template <class V, Format kFormat, int N>
void multiply_float(
    const Matrix& m, int64_t index, const float* x, size_t stride, float* y, size_t ldy) {
    constexpr int kStep = V::W * (kFormat == Format::f32 ? 4 : 2);
    const uint8_t* weights = m.tile(index);
    typename V::F even[N], odd[N];
    for (int r = 0; r < N; ++r) even[r] = odd[r] = V::zero();
    int64_t k = 0;
    for (; k + 1 < m.inputs; k += 2, weights += 2 * kStep) {
        __builtin_prefetch(weights + kPrefetchFloat);
        const typename V::F w0 = load_weights<V, kFormat>(weights);
        const typename V::F w1 = load_weights<V, kFormat>(weights + kStep);
        for (int r = 0; r < N; ++r) {
            even[r] = V::fma(w0, V::set1(x[r * stride + k]), even[r]);
            odd[r] = V::fma(w1, V::set1(x[r * stride + k + 1]), odd[r]);
        }
    }
    if (k < m.inputs) {
        const typename V::F w0 = load_weights<V, kFormat>(weights);
        for (int r = 0; r < N; ++r) even[r] = V::fma(w0, V::set1(x[r * stride + k]), even[r]);
    }
    const int64_t num_valid = m.outputs - index * V::W;
    for (int r = 0; r < N; ++r) store_tile<V>(V::add(even[r], odd[r]), y + r * ldy, num_valid);
}

// Call `block` with every number of rows from 1 to kMax as a compile-time constant.
template <int kMax, class Block>
void with_rows(int num_rows, Block&& block) {
    [&]<int... kRows>(std::integer_sequence<int, kRows...>) {
        ((num_rows == kRows + 1 ? block.template operator()<kRows + 1>() : void()), ...);
    }(std::make_integer_sequence<int, kMax>());
}

// A tile of any format times the N rows of x that start at `row`.
template <class Dot, int N>
void multiply_tile(
    const Matrix& m, int64_t tile, const Activations& x, int64_t row, float* y, size_t ldy) {
    using V = typename Dot::V;
    if (m.is_quantised()) {
        const ActGroup* act = x.groups + row * x.groups_per_row;
        if (m.format == Format::q4) {
            multiply_quantised<Dot, 4, N>(m, tile, act, x.groups_per_row, y, ldy);
        } else {
            multiply_quantised<Dot, 8, N>(m, tile, act, x.groups_per_row, y, ldy);
        }
        return;
    }
    const float* values = x.values + row * x.values_per_row;
    if (m.format == Format::f32) {
        multiply_float<V, Format::f32, N>(m, tile, values, x.values_per_row, y, ldy);
    } else if (m.format == Format::f16) {
        multiply_float<V, Format::f16, N>(m, tile, values, x.values_per_row, y, ldy);
    } else {
        multiply_float<V, Format::bf16, N>(m, tile, values, x.values_per_row, y, ldy);
    }
}

// Tiles `first_tile` up to `stop_tile` of m times `num_rows` rows; y starts at the first of these
// outputs, and rows of y are `ldy` numbers apart.
template <class Dot>
void matmul(
    const Matrix& m, int64_t first_tile, int64_t stop_tile, const Activations& x, int64_t num_rows,
    float* y, size_t ldy) {
    // Blocks of equal size: 9 rows are better as 5 + 4 than as 8 + 1.
    const int64_t num_blocks = (num_rows + Dot::kMaxRows - 1) / Dot::kMaxRows;
    for (int64_t tile = first_tile; tile < stop_tile; ++tile) {
        int64_t row = 0;
        for (int64_t block = 0; block < num_blocks; ++block) {
            const int64_t stop = num_rows * (block + 1) / num_blocks;
            with_rows<Dot::kMaxRows>(static_cast<int>(stop - row), [&]<int N>() {
                multiply_tile<Dot, N>(m, tile, x, row, y + row * ldy + (tile - first_tile) * Dot::V::W, ldy);
            });
            row = stop;
        }
    }
}

}  // namespace headlong
