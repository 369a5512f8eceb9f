// Integer dot products of one weight group of a tile with N rows, with AVX2.
#pragma once

#include "fetch_ahead.hpp"
#include "formats.hpp"
#include "simd_avx2.hpp"
#include "unroll.hpp"

namespace headlong {

struct Avx2Dot {
    using V = Avx2Vec;
    static constexpr int kMaxRows = 6;  // with two vectors, 12 of 16 registers are sums
    static constexpr int kMaxFloatRows = 3;  // × 2 vectors × 2 sums
    static constexpr int kTileVectors = 2;  // one broadcast serves both
    static constexpr bool kUnsignedQ8 = false;

    template <int N>
    using Sums = V::I[N][kTileVectors];

    // Without the barrier the compiler moves additions behind all products and spills those.
    static __m256i add16(__m256i a, __m256i b) {
        __m256i sum = _mm256_add_epi16(a, b);
        asm("" : "+x"(sum));
        return sum;
    }

    // 4-bit: |15 × 127| × 2 products × 8 additions stays inside 16 bits, so one widening is enough.
    // Quad after quad, so that registers hold the sums and the quads of one load.
    template <int N>
    HEADLONG_INLINE static void q4(const uint8_t* w, const ActGroup* act, size_t stride, Sums<N>& sums) {
        const __m256i low = _mm256_set1_epi8(15);
        unroll<4>([&](auto v) HEADLONG_INLINE {
            __m256i quads[2][kTileVectors];
            fetch_ahead<4, N>(w + 64 * v);
            unroll<kTileVectors>([&](auto t) HEADLONG_INLINE {
                const __m256i packed = V::load_int(w + 32 * (kTileVectors * v + t));
                quads[0][t] = _mm256_and_si256(packed, low);
                quads[1][t] = _mm256_and_si256(_mm256_srli_epi16(packed, 4), low);
            });
            unroll<2>([&](auto half) HEADLONG_INLINE {
                unroll<N>([&](auto r) HEADLONG_INLINE {
                    const __m256i a = V::set1_int(act[r * stride].q + 4 * v + 16 * half);
                    unroll<kTileVectors>([&](auto t) HEADLONG_INLINE {
                        const __m256i product = _mm256_maddubs_epi16(quads[half][t], a);
                        sums[r][t] = v + half == 0 ? product : add16(sums[r][t], product);
                    });
                });
            });
        });
        const __m256i ones = _mm256_set1_epi16(1);
        unroll<N>([&](auto r) HEADLONG_INLINE {
            unroll<kTileVectors>([&](auto t) HEADLONG_INLINE { sums[r][t] = _mm256_madd_epi16(sums[r][t], ones); });
        });
    }

    // Four inputs of 5 or 6 bits each of one vector of outputs.
    template <int kBits, int kQuad>
    HEADLONG_INLINE static __m256i quad(const uint8_t* w, int vector) {
        constexpr int kPlace = kBits == 5 ? kQuad : kQuad % 4 * 2, kPlane = kBits == 5 ? 0 : kQuad / 4;
        const __m256i low = _mm256_set1_epi8(15), bits = _mm256_set1_epi8(kBits == 5 ? 16 : 48);
        __m256i packed = V::load_int(w + 32 * (kTileVectors * (kQuad % 4) + vector));
        __m256i high = V::load_int(w + 32 * (kTileVectors * (4 + kPlane) + vector));
        if constexpr (kQuad >= 4) packed = _mm256_srli_epi16(packed, 4);
        if constexpr (kPlace < 4) high = _mm256_slli_epi16(high, 4 - kPlace);
        if constexpr (kPlace > 4) high = _mm256_srli_epi16(high, kPlace - 4);
        return _mm256_or_si256(_mm256_and_si256(packed, low), _mm256_and_si256(high, bits));
    }

    // Adds the products of eight inputs: more of them do not fit 16 bits.
    template <int kBits, int kQuad, int N>
    HEADLONG_INLINE static void add_quads(const uint8_t* w, const ActGroup* act, size_t stride, Sums<N>& sums) {
        const __m256i ones = _mm256_set1_epi16(1);
        __m256i first[kTileVectors], second[kTileVectors];
        unroll<kTileVectors>([&](auto t) HEADLONG_INLINE {
            first[t] = quad<kBits, kQuad>(w, t);
            second[t] = quad<kBits, kQuad + 1>(w, t);
        });
        unroll<N>([&](auto r) HEADLONG_INLINE {
            const int8_t* a = act[r * stride].q + 4 * kQuad;
            const __m256i a_first = V::set1_int(a), a_second = V::set1_int(a + 4);
            unroll<kTileVectors>([&](auto t) HEADLONG_INLINE {
                const __m256i products = _mm256_add_epi16(
                    _mm256_maddubs_epi16(first[t], a_first), _mm256_maddubs_epi16(second[t], a_second));
                sums[r][t] = V::dot_pairs(sums[r][t], products, ones);
            });
        });
    }

    template <int N>
    HEADLONG_INLINE static void q5(const uint8_t* w, const ActGroup* act, size_t stride, Sums<N>& sums) {
        unroll<N>([&](auto r) HEADLONG_INLINE {
            unroll<kTileVectors>([&](auto t) HEADLONG_INLINE { sums[r][t] = V::zero_int(); });
        });
        fetch_ahead<5, N>(w);
        unroll<4>([&](auto v) HEADLONG_INLINE {
            fetch_ahead<5, N>(w + 64 * (v + 1));
            add_quads<5, 2 * v, N>(w, act, stride, sums);
        });
    }

    // Half a group, since 16 numbers share a scale. Weights are stored + 32.
    template <int kHalf, int N>
    HEADLONG_INLINE static void q6(const uint8_t* w, const ActGroup* act, size_t stride, Sums<N>& sums) {
        unroll<N>([&](auto r) HEADLONG_INLINE {
            const __m256i start = _mm256_set1_epi32(act[r * stride].minus_halves[kHalf]);
            unroll<kTileVectors>([&](auto t) HEADLONG_INLINE { sums[r][t] = start; });
        });
        fetch_ahead<6, N>(w + 192 * kHalf);
        unroll<2>([&](auto v) HEADLONG_INLINE {
            fetch_ahead<6, N>(w + 192 * kHalf + 64 * (v + 1));
            add_quads<6, 4 * kHalf + 2 * v, N>(w, act, stride, sums);
        });
    }

    // 8-bit: the sign moves from the weight to the activation; 128 × 127 × 2 just fits 16 bits, so
    // every product is widened at once.
    template <int N>
    HEADLONG_INLINE static void q8(const uint8_t* w, const ActGroup* act, size_t stride, Sums<N>& sums) {
        const __m256i ones = _mm256_set1_epi16(1);
        unroll<8>([&](auto v) HEADLONG_INLINE {
            __m256i weight[kTileVectors], size[kTileVectors];
            fetch_ahead<8, N>(w + 64 * v);
            unroll<kTileVectors>([&](auto t) HEADLONG_INLINE {
                weight[t] = V::load_int(w + 32 * (kTileVectors * v + t));
                size[t] = _mm256_abs_epi8(weight[t]);
            });
            unroll<N>([&](auto r) HEADLONG_INLINE {
                const __m256i a = V::set1_int(act[r * stride].q + 4 * v);
                unroll<kTileVectors>([&](auto t) HEADLONG_INLINE {
                    const __m256i product = _mm256_maddubs_epi16(size[t], _mm256_sign_epi8(a, weight[t]));
                    sums[r][t] = V::dot_pairs(v == 0 ? V::zero_int() : sums[r][t], product, ones);
                });
            });
        });
    }
};

}  // namespace headlong
