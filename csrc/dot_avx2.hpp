// Integer dot products of one weight group of a tile with N rows, with AVX2.
#pragma once

#include "formats.hpp"
#include "simd_avx2.hpp"

namespace headlong {

struct Avx2Dot {
    using V = Avx2Vec;
    static constexpr int kMaxRows = 6;  // measured better than 4 or 8
    static constexpr bool kUnsignedQ8 = false;

    static __m256i load(const uint8_t* p) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    }
    static __m256i broadcast_quad(const int8_t* a) {
        int32_t four;
        std::memcpy(&four, a, sizeof four);
        return _mm256_set1_epi32(four);
    }

    // 4-bit: |15 × 127| × 2 products × 8 additions stays inside 16 bits, so one widening is enough.
    template <int N>
    static void q4(const uint8_t* w, const ActGroup* act, size_t stride, V::I* sums) {
        const __m256i low = _mm256_set1_epi8(15);
        const __m256i ones = _mm256_set1_epi16(1);
        __m256i q[8];
        for (int v = 0; v < 4; ++v) {
            const __m256i packed = load(w + 32 * v);
            q[v] = _mm256_and_si256(packed, low);
            q[v + 4] = _mm256_and_si256(_mm256_srli_epi16(packed, 4), low);
        }
        for (int r = 0; r < N; ++r) {
            const int8_t* a = act[r * stride].q;
            __m256i even = _mm256_maddubs_epi16(q[0], broadcast_quad(a));
            __m256i odd = _mm256_maddubs_epi16(q[1], broadcast_quad(a + 4));
            for (int v = 2; v < 8; v += 2) {
                even = _mm256_add_epi16(even, _mm256_maddubs_epi16(q[v], broadcast_quad(a + 4 * v)));
                odd = _mm256_add_epi16(odd, _mm256_maddubs_epi16(q[v + 1], broadcast_quad(a + 4 * v + 4)));
            }
            sums[r] = _mm256_madd_epi16(_mm256_add_epi16(even, odd), ones);
        }
    }

    // 8-bit: the sign moves from the weight to the activation; 128 × 127 × 2 just fits 16 bits, so
    // every product is widened at once.
    template <int N>
    static void q8(const uint8_t* w, const ActGroup* act, size_t stride, V::I* sums) {
        const __m256i ones = _mm256_set1_epi16(1);
        for (int r = 0; r < N; ++r) sums[r] = _mm256_setzero_si256();
        for (int v = 0; v < 8; ++v) {
            const __m256i weight = load(w + 32 * v);
            const __m256i size = _mm256_abs_epi8(weight);
            for (int r = 0; r < N; ++r) {
                const __m256i a = _mm256_sign_epi8(broadcast_quad(act[r * stride].q + 4 * v), weight);
                sums[r] = _mm256_add_epi32(
                    sums[r], _mm256_madd_epi16(_mm256_maddubs_epi16(size, a), ones));
            }
        }
    }
};

}  // namespace headlong
