// Integer dot products of one weight group of a tile with N rows, in plain C++.
#pragma once

#include "formats.hpp"
#include "simd_portable.hpp"

namespace headlong {

struct PortableDot {
    using V = PortableVec;
    static constexpr int kMaxRows = 4;
    static constexpr int kMaxFloatRows = 4;
    static constexpr int kTileVectors = 1;
    template <int N>
    using Sums = V::I[N][kTileVectors];
    static constexpr bool kUnsignedQ8 = false;

    template <int N>
    static void q4(const uint8_t* w, const ActGroup* act, size_t stride, Sums<N>& sums) {
        for (int r = 0; r < N; ++r) {
            const int8_t* a = act[r * stride].q;
            V::I sum = V::zero_int();
            for (int quad = 0; quad < 4; ++quad) {
                for (int out = 0; out < V::W; ++out) {
                    const uint8_t* four = w + (quad * V::W + out) * 4;
                    int32_t part = 0;
                    for (int b = 0; b < 4; ++b) {
                        part += (four[b] & 15) * a[quad * 4 + b] + (four[b] >> 4) * a[16 + quad * 4 + b];
                    }
                    sum[out] += part;
                }
            }
            sums[r][0] = sum;
        }
    }

    // Adds the products of some quads of 5 or 6 bits to sums that have their start.
    template <int kBits, int kFirst, int kStop, int N>
    static void add_quads(const uint8_t* w, const ActGroup* act, size_t stride, Sums<N>& sums) {
        for (int quad = kFirst; quad < kStop; ++quad) {
            const int place = kBits == 5 ? quad : quad % 4 * 2, plane = kBits == 5 ? 0 : quad / 4;
            const uint8_t* low = w + quad % 4 * V::W * 4;
            const uint8_t* high = w + (4 + plane) * V::W * 4;
            uint8_t weight[V::W * 4];
            for (int i = 0; i < V::W * 4; ++i) {
                const int above = high[i] >> place & (kBits == 5 ? 1 : 3);
                weight[i] = (low[i] >> quad / 4 * 4 & 15) | above << 4;
            }
            for (int r = 0; r < N; ++r) {
                const int8_t* a = act[r * stride].q + quad * 4;
                for (int out = 0; out < V::W; ++out) {
                    int32_t part = 0;
                    for (int b = 0; b < 4; ++b) part += weight[out * 4 + b] * a[b];
                    sums[r][0][out] += part;
                }
            }
        }
    }

    template <int N>
    static void q5(const uint8_t* w, const ActGroup* act, size_t stride, Sums<N>& sums) {
        for (int r = 0; r < N; ++r) sums[r][0] = V::zero_int();
        add_quads<5, 0, 8, N>(w, act, stride, sums);
    }

    // Half a group, since 16 numbers share a scale. Weights are stored + 32.
    template <int kHalf, int N>
    static void q6(const uint8_t* w, const ActGroup* act, size_t stride, Sums<N>& sums) {
        for (int r = 0; r < N; ++r) sums[r][0] = V::zero_int() + act[r * stride].minus_halves[kHalf];
        add_quads<6, 4 * kHalf, 4 * kHalf + 4, N>(w, act, stride, sums);
    }

    template <int N>
    static void q8(const uint8_t* w, const ActGroup* act, size_t stride, Sums<N>& sums) {
        for (int r = 0; r < N; ++r) {
            const int8_t* a = act[r * stride].q;
            V::I sum = V::zero_int();
            for (int quad = 0; quad < 8; ++quad) {
                for (int out = 0; out < V::W; ++out) {
                    const uint8_t* four = w + (quad * V::W + out) * 4;
                    int32_t part = 0;
                    for (int b = 0; b < 4; ++b) part += static_cast<int8_t>(four[b]) * a[quad * 4 + b];
                    sum[out] += part;
                }
            }
            sums[r][0] = sum;
        }
    }
};

}  // namespace headlong
