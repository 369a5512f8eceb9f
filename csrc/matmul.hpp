// Matrix × rows: every weight is loaded and unpacked once for a block of rows.
//
// What a row yields is a fixed sequence of operations per output: exact integer sums per group, then
// one float accumulation in the order of the groups. Neither the number of rows in a block nor the
// tile range enters it, which is all that batch invariance needs.
#pragma once

#include <cstring>
#include <utility>

#include "fetch_ahead.hpp"
#include "formats.hpp"
#include "unroll.hpp"

namespace headlong {

// Store the first `num_valid` lanes; the last vectors of a tile may have none.
template <class V>
void store_tile(typename V::F value, float* out, int64_t num_valid) {
    if (num_valid <= 0) return;
    if (num_valid >= V::W) {
        V::store(out, value);
        return;
    }
    float lanes[V::W];
    V::store(lanes, value);
    std::memcpy(out, lanes, num_valid * sizeof(float));
}

// The scales of one vector of outputs in a group, or in half a group of 6 bits.
template <class V, Format kFormat, Scales kScales, int kWidth>
struct GroupScales {
    const uint8_t* shared;  // of nested scales
    const uint8_t* own;

    static const uint16_t* halves(const uint8_t* place) { return reinterpret_cast<const uint16_t*>(place); }

    typename V::F scale(int part, int lane) const {
        if constexpr (kScales != Scales::nested) return V::load_f16(halves(own) + lane);
        if constexpr (kFormat == Format::q6) {
            const auto common = V::load(reinterpret_cast<const float*>(shared) + lane);
            return V::mul(common, V::to_float(V::load_i8(own + part * kWidth + lane)));
        }
        return V::mul(V::load_f16(halves(shared) + lane), V::to_float(V::load_u8(own + lane)));
    }
    typename V::F minimum(int lane) const {
        if constexpr (kScales == Scales::one) {
            return V::mul(V::load_f16(halves(own) + lane), V::set1(kFormat == Format::q4 ? -8.0f : -16.0f));
        }
        if constexpr (kScales == Scales::two || kScales == Scales::wide) {
            const auto lowest = V::load_f16(halves(own) + kWidth + lane);
            return kFormat == Format::q8 ? V::fma(scale(0, lane), V::set1(128.0f), lowest) : lowest;
        }
        return V::mul(V::load_f16(halves(shared) + kWidth + lane), V::to_float(V::load_u8(own + kWidth + lane)));
    }
};

// A quantised tile times N rows. `Dot` is the instruction set.
template <class Dot, Format kFormat, Scales kScales, int N>
void multiply_quantised(
    const Matrix& m, int64_t index, const ActGroup* act, size_t stride, float* y, size_t ldy) {
    using V = typename Dot::V;
    constexpr int kVectors = Dot::kTileVectors, kWidth = V::W * kVectors;
    constexpr TileLayout kLayout = layout_of(kFormat, kScales, kWidth);
    constexpr int kBits = static_cast<int>(kLayout.weights * 8 / (kWidth * kGroup));
    constexpr bool kHasMinimum = kBits <= 5 || kScales == Scales::two || kScales == Scales::wide;
    constexpr size_t kOfSecond = kScales == Scales::wide ? 0 : kLayout.scales;  // where the scales of a pair's second are
    const uint8_t* pair = m.tile(index);
    const uint8_t* shared = nullptr;
    const int64_t num_groups = m.num_groups();

    typename V::F acc[N][kVectors];
    unroll<N>([&](auto r) { unroll<kVectors>([&](auto t) { acc[r][t] = V::zero(); }); });
    const auto add_group = [&](const uint8_t* scales, const uint8_t* weights, const ActGroup* group) HEADLONG_INLINE {
        const GroupScales<V, kFormat, kScales, kWidth> sizes{shared, scales};
        unroll<kFormat == Format::q6 ? 2 : 1>([&](auto part) HEADLONG_INLINE {
            typename V::I sums[N][kVectors];
            if constexpr (kFormat == Format::q4) Dot::template q4<N>(weights, group, stride, sums);
            if constexpr (kFormat == Format::q5) Dot::template q5<N>(weights, group, stride, sums);
            if constexpr (kFormat == Format::q6) Dot::template q6<part, N>(weights, group, stride, sums);
            if constexpr (kFormat == Format::q8) Dot::template q8<N>(weights, group, stride, sums);
            unroll<kVectors>([&](auto t) HEADLONG_INLINE {
                const typename V::F scale = sizes.scale(part, t * V::W);
                unroll<N>([&](auto r) HEADLONG_INLINE {
                    const ActGroup& row = group[r * stride];
                    acc[r][t] = V::fma(V::to_float(sums[r][t]), V::mul(scale, V::set1(row.scale)), acc[r][t]);
                    if constexpr (kHasMinimum) {
                        acc[r][t] = V::fma(sizes.minimum(t * V::W), V::set1(row.sum), acc[r][t]);
                    }
                });
            });
        });
    };
    for (int64_t g = 0; g < num_groups; g += 2) {
        const uint8_t* scales = pair;
        if (kLayout.shared > 0 && g % kNested == 0) {
            shared = pair;
            scales += kLayout.shared;
        }
        const uint8_t* weights = scales + 2 * kLayout.scales;
        for (const uint8_t* line = pair; line < weights; line += 64) fetch_ahead<kBits, N>(line);
        add_group(scales, weights, act + g);
        if (g + 1 < num_groups) add_group(scales + kOfSecond, weights + kLayout.weights, act + g + 1);
        pair = weights + 2 * kLayout.weights;
    }
    const int64_t num_valid = m.outputs - index * kWidth;
    unroll<N>([&](auto r) {
        unroll<kVectors>([&](auto t) {
            store_tile<V>(V::mul(acc[r][t], V::set1(m.unit)), y + r * ldy + t * V::W, num_valid - t * V::W);
        });
    });
}

// The same for a matrix whose scales may be of several kinds.
template <class Dot, Format kFormat, int N>
void multiply_scaled(const Matrix& m, int64_t index, const ActGroup* act, size_t stride, float* y, size_t ldy) {
    switch (m.scales) {
        case Scales::one: return multiply_quantised<Dot, kFormat, Scales::one, N>(m, index, act, stride, y, ldy);
        case Scales::two: return multiply_quantised<Dot, kFormat, Scales::two, N>(m, index, act, stride, y, ldy);
        case Scales::wide: return multiply_quantised<Dot, kFormat, Scales::wide, N>(m, index, act, stride, y, ldy);
        case Scales::nested: break;
    }
    if constexpr (kFormat != Format::q8) {
        return multiply_quantised<Dot, kFormat, Scales::nested, N>(m, index, act, stride, y, ldy);
    }
}

template <class V, Format kFormat>
typename V::F load_weights(const uint8_t* p) {
    if constexpr (kFormat == Format::f32) return V::load(reinterpret_cast<const float*>(p));
    if constexpr (kFormat == Format::f16) return V::load_f16(reinterpret_cast<const uint16_t*>(p));
    if constexpr (kFormat == Format::bf16) return V::load_bf16(reinterpret_cast<const uint16_t*>(p));
}

// A float tile times N rows; two sums by the parity of the input hide the latency of one row.
template <class Dot, Format kFormat, int N>
void multiply_float(
    const Matrix& m, int64_t index, const float* x, size_t stride, float* y, size_t ldy) {
    using V = typename Dot::V;
    constexpr int kVectors = Dot::kTileVectors, kWidth = V::W * kVectors;
    constexpr int kVectorBytes = V::W * (kFormat == Format::f32 ? 4 : 2), kStep = kVectorBytes * kVectors;
    const uint8_t* weights = m.tile(index);
    typename V::F even[N][kVectors], odd[N][kVectors];
    unroll<N>([&](auto r) { unroll<kVectors>([&](auto t) { even[r][t] = odd[r][t] = V::zero(); }); });
    const auto add_input = [&](typename V::F(&sums)[N][kVectors], const uint8_t* column, int64_t k) HEADLONG_INLINE {
        unroll<kVectors>([&](auto t) HEADLONG_INLINE {
            const typename V::F weight = load_weights<V, kFormat>(column + t * kVectorBytes);
            unroll<N>([&](auto r) HEADLONG_INLINE {
                sums[r][t] = V::fma(weight, V::set1(x[r * stride + k]), sums[r][t]);
            });
        });
    };
    int64_t k = 0;
    for (; k + 1 < m.inputs; k += 2, weights += 2 * kStep) {
        for (int line = 0; line < 2 * kStep; line += 64) fetch_ahead<0, N>(weights + line);
        add_input(even, weights, k);
        add_input(odd, weights + kStep, k + 1);
    }
    if (k < m.inputs) add_input(even, weights, k);
    const int64_t num_valid = m.outputs - index * kWidth;
    unroll<N>([&](auto r) {
        unroll<kVectors>([&](auto t) {
            store_tile<V>(V::add(even[r][t], odd[r][t]), y + r * ldy + t * V::W, num_valid - t * V::W);
        });
    });
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
    const size_t groups = x.groups_per_row, floats = x.values_per_row;
    const ActGroup* act = m.is_quantised() ? x.groups + row * groups : nullptr;
    switch (m.format) {
        case Format::q4: return multiply_scaled<Dot, Format::q4, N>(m, tile, act, groups, y, ldy);
        case Format::q5: return multiply_scaled<Dot, Format::q5, N>(m, tile, act, groups, y, ldy);
        case Format::q6: return multiply_quantised<Dot, Format::q6, Scales::nested, N>(m, tile, act, groups, y, ldy);
        case Format::q8: return multiply_scaled<Dot, Format::q8, N>(m, tile, act, groups, y, ldy);
        default: break;
    }
    if constexpr (N <= Dot::kMaxFloatRows) {
        const float* values = x.values + row * floats;
        switch (m.format) {
            case Format::f32: return multiply_float<Dot, Format::f32, N>(m, tile, values, floats, y, ldy);
            case Format::f16: return multiply_float<Dot, Format::f16, N>(m, tile, values, floats, y, ldy);
            default: return multiply_float<Dot, Format::bf16, N>(m, tile, values, floats, y, ldy);
        }
    }
}

// Tiles `first_tile` up to `stop_tile` of m times `num_rows` rows; y starts at the first of these
// outputs, and rows of y are `ldy` numbers apart.
template <class Dot>
void matmul(
    const Matrix& m, int64_t first_tile, int64_t stop_tile, const Activations& x, int64_t num_rows,
    float* y, size_t ldy) {
    // Blocks of equal size: 9 rows are better as 5 + 4 than as 8 + 1.
    const int64_t most = m.is_quantised() ? Dot::kMaxRows : Dot::kMaxFloatRows;
    const int64_t num_blocks = (num_rows + most - 1) / most;
    for (int64_t tile = first_tile; tile < stop_tile; ++tile) {
        int64_t row = 0;
        for (int64_t block = 0; block < num_blocks; ++block) {
            const int64_t stop = num_rows * (block + 1) / num_blocks;
            with_rows<Dot::kMaxRows>(static_cast<int>(stop - row), [&]<int N>() {
                multiply_tile<Dot, N>(m, tile, x, row, y + row * ldy + (tile - first_tile) * m.width, ldy);
            });
            row = stop;
        }
    }
}

}  // namespace headlong
