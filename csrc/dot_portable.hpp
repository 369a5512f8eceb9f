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
