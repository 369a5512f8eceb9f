// Integer dot products of one weight group of a tile with N rows, with AVX-512 VNNI.
#pragma once

#include "fetch_ahead.hpp"
#include "formats.hpp"
#include "simd_avx512.hpp"
#include "unroll.hpp"

namespace headlong {

struct Avx512Dot {
    using V = Avx512Vec;
    static constexpr int kMaxRows = 8;
    static constexpr int kMaxFloatRows = 8;
    static constexpr int kTileVectors = 1;
    static constexpr bool kUnsignedQ8 = true;  // the instruction multiplies unsigned by signed

    template <int N>
    using Sums = V::I[N][kTileVectors];

    template <int N>
    static void q4(const uint8_t* w, const ActGroup* act, size_t stride, Sums<N>& sums) {
        const __m512i low = _mm512_set1_epi8(15);
        __m512i q[8];
        for (int v = 0; v < 4; ++v) {
            fetch_ahead<4, N>(w + 64 * v);
            const __m512i packed = V::load_int(w + 64 * v);
            q[v] = _mm512_and_si512(packed, low);
            q[v + 4] = _mm512_and_si512(_mm512_srli_epi16(packed, 4), low);
        }
        for (int r = 0; r < N; ++r) {
            const int8_t* a = act[r * stride].q;
            // Two sums: one would wait four cycles for every product.
            __m512i even = _mm512_setzero_si512(), odd = even;
            for (int v = 0; v < 8; v += 2) {
                even = _mm512_dpbusd_epi32(even, q[v], V::set1_int(a + 4 * v));
                odd = _mm512_dpbusd_epi32(odd, q[v + 1], V::set1_int(a + 4 * v + 4));
            }
            sums[r][0] = _mm512_add_epi32(even, odd);
        }
    }

    // Four inputs of 5 or 6 bits each, which `high` brings to their place in the bytes.
    template <int kBits, int kQuad>
    static __m512i quad(const uint8_t* w) {
        constexpr int kPlace = kBits == 5 ? kQuad : kQuad % 4 * 2, kPlane = kBits == 5 ? 0 : kQuad / 4;
        const __m512i low = _mm512_set1_epi8(15), bits = _mm512_set1_epi8(kBits == 5 ? 16 : 48);
        __m512i packed = V::load_int(w + 64 * (kQuad % 4)), high = V::load_int(w + 64 * (4 + kPlane));
        if constexpr (kQuad >= 4) packed = _mm512_srli_epi16(packed, 4);
        if constexpr (kPlace < 4) high = _mm512_slli_epi16(high, 4 - kPlace);
        if constexpr (kPlace > 4) high = _mm512_srli_epi16(high, kPlace - 4);
        constexpr int kOrAnd = 0xf8;  // a | (b & c)
        return _mm512_ternarylogic_epi64(_mm512_and_si512(packed, low), high, bits, kOrAnd);
    }

    template <int N>
    static void q5(const uint8_t* w, const ActGroup* act, size_t stride, Sums<N>& sums) {
        __m512i q[8];
        unroll<8>([&](auto v) HEADLONG_INLINE {
            if constexpr (v < 5) fetch_ahead<5, N>(w + 64 * v);
            q[v] = quad<5, v>(w);
        });
        for (int r = 0; r < N; ++r) {
            const int8_t* a = act[r * stride].q;
            __m512i even = _mm512_setzero_si512(), odd = even;
            for (int v = 0; v < 8; v += 2) {
                even = _mm512_dpbusd_epi32(even, q[v], V::set1_int(a + 4 * v));
                odd = _mm512_dpbusd_epi32(odd, q[v + 1], V::set1_int(a + 4 * v + 4));
            }
            sums[r][0] = _mm512_add_epi32(even, odd);
        }
    }

    // Half a group, since 16 numbers share a scale. Weights are stored + 32.
    template <int kHalf, int N>
    static void q6(const uint8_t* w, const ActGroup* act, size_t stride, Sums<N>& sums) {
        __m512i q[4];
        unroll<4>([&](auto v) HEADLONG_INLINE {
            if constexpr (v < 3) fetch_ahead<6, N>(w + 64 * (3 * kHalf + v));
            q[v] = quad<6, 4 * kHalf + v>(w);
        });
        for (int r = 0; r < N; ++r) {
            const ActGroup& row = act[r * stride];
            __m512i sum = _mm512_set1_epi32(row.minus_halves[kHalf]);
            for (int v = 0; v < 4; ++v) {
                sum = _mm512_dpbusd_epi32(sum, q[v], V::set1_int(row.q + 16 * kHalf + 4 * v));
            }
            sums[r][0] = sum;
        }
    }

    // Weights are stored + 128; the correction is where the sum starts.
    template <int N>
    static void q8(const uint8_t* w, const ActGroup* act, size_t stride, Sums<N>& sums) {
        __m512i q[8];
        for (int v = 0; v < 8; ++v) {
            fetch_ahead<8, N>(w + 64 * v);
            q[v] = V::load_int(w + 64 * v);
            asm("" : "+v"(q[v]));  // or it would be loaded anew for every row
        }
        for (int r = 0; r < N; ++r) {
            const ActGroup& row = act[r * stride];
            __m512i sum = _mm512_set1_epi32(row.minus_offset);
            for (int v = 0; v < 8; ++v) {
                sum = _mm512_dpbusd_epi32(sum, q[v], V::set1_int(row.q + 4 * v));
            }
            sums[r][0] = sum;
        }
    }
};

}  // namespace headlong
