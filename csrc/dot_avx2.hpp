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
