// Vectors of 8 floats with AVX2, FMA and F16C.
#pragma once

#include <cstdint>
#include <cstring>

#include <immintrin.h>

namespace headlong {

struct Avx2Vec {
    static constexpr int W = 8;
    static constexpr int kQueryTile = 5;  // × 2 vectors: as many sums as 16 registers hold beside keys and products
    using F = __m256;
    using I = __m256i;

    static F load(const float* p) { return _mm256_loadu_ps(p); }
    static void store(float* p, F v) { _mm256_storeu_ps(p, v); }
    static F set1(float x) { return _mm256_set1_ps(x); }
    static F zero() { return _mm256_setzero_ps(); }
    static F add(F a, F b) { return _mm256_add_ps(a, b); }
    static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
    static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
    static F div(F a, F b) { return _mm256_div_ps(a, b); }
    static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
    static F max(F a, F b) { return _mm256_max_ps(a, b); }
    static F min(F a, F b) { return _mm256_min_ps(a, b); }
    static F abs(F a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
    static I to_int(F a) { return _mm256_cvtps_epi32(a); }
    static F to_float(I a) { return _mm256_cvtepi32_ps(a); }
    static F pow2(I n) {
        return _mm256_castsi256_ps(
            _mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
    }
    static F load_f16(const uint16_t* p) {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    }
    static F load_bf16(const uint16_t* p) {
        const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
    }
    static I load_u8(const uint8_t* p) {
        return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    }
    static I load_i8(const uint8_t* p) {
        return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    }
    static __m128i to_i16(I v) {
        return _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    }
    static void store_i8(int8_t* p, I v) {
        _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(to_i16(v), to_i16(v)));
    }
    static void store_i16(int16_t* p, I v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_i16(v)); }
    // 32 bits a lane: an integer, two of 16 bits, or four of 8.
    static I load_int(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
    static I set1_int(const void* p) {
        int32_t bits;
        std::memcpy(&bits, p, sizeof bits);
        return _mm256_set1_epi32(bits);
    }
    // sum + the products of both 16-bit integers of a lane.
    static I dot_pairs(I sum, I a, I b) {
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
        asm("" : "+x"(sum));  // or the compiler moves additions behind all products and spills those
        return sum;
    }
    static float reduce_add(F v) {
        __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
        s = _mm_add_ps(s, _mm_movehl_ps(s, s));
        return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
    }
    static float reduce_max(F v) {
        __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
        s = _mm_max_ps(s, _mm_movehl_ps(s, s));
        return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
    }
    static int32_t reduce_add(I v) {
        __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
        s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
        return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
    }
    static I zero_int() { return _mm256_setzero_si256(); }
    static I add(I a, I b) { return _mm256_add_epi32(a, b); }
    // Lanes from `first` up to, not including, `stop` keep their value; the others become `other`.
    static F keep(F v, int first, int stop, F other) {
        const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        const __m256i inside = _mm256_and_si256(
            _mm256_cmpgt_epi32(lane, _mm256_set1_epi32(first - 1)),
            _mm256_cmpgt_epi32(_mm256_set1_epi32(stop), lane));
        return _mm256_blendv_ps(other, v, _mm256_castsi256_ps(inside));
    }
};

}  // namespace headlong
