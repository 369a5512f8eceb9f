// Vectors of 16 floats with AVX-512 (F, BW, VL, DQ).
#pragma once

#include <cstdint>
#include <cstring>

#include <immintrin.h>

namespace headlong {

struct Avx512Vec {
    static constexpr int W = 16;
    static constexpr int kQueryTile = 12;  // × 2 vectors: as many sums as 32 registers hold
    using F = __m512;
    using I = __m512i;

    static F load(const float* p) { return _mm512_loadu_ps(p); }
    static void store(float* p, F v) { _mm512_storeu_ps(p, v); }
    static F set1(float x) { return _mm512_set1_ps(x); }
    static F zero() { return _mm512_setzero_ps(); }
    static F add(F a, F b) { return _mm512_add_ps(a, b); }
    static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
    static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
    static F div(F a, F b) { return _mm512_div_ps(a, b); }
    static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
    static F max(F a, F b) { return _mm512_max_ps(a, b); }
    static F min(F a, F b) { return _mm512_min_ps(a, b); }
    static F abs(F a) { return _mm512_abs_ps(a); }
    static I to_int(F a) { return _mm512_cvtps_epi32(a); }
    static F to_float(I a) { return _mm512_cvtepi32_ps(a); }
    static F pow2(I n) {
        return _mm512_castsi512_ps(
            _mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
    }
    static F load_f16(const uint16_t* p) {
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    }
    static F load_bf16(const uint16_t* p) {
        const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
    }
    static I load_u8(const uint8_t* p) {
        return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    }
    static I load_i8(const uint8_t* p) {
        return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    }
    static void store_i8(int8_t* p, I v) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(v));
    }
    static void store_i16(int16_t* p, I v) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtsepi32_epi16(v));
    }
    // 32 bits a lane: an integer, two of 16 bits, or four of 8.
    static I load_int(const void* p) { return _mm512_loadu_si512(p); }
    static I set1_int(const void* p) {
        int32_t bits;
        std::memcpy(&bits, p, sizeof bits);
        return _mm512_set1_epi32(bits);
    }
    // sum + the products of both 16-bit integers of a lane.
    static I dot_pairs(I sum, I a, I b) {
        // In place: with the intrinsic, GCC 12 writes two dozen such sums to memory in every turn of a loop.
        asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
        return sum;
    }
    static float reduce_add(F v) { return _mm512_reduce_add_ps(v); }
    static float reduce_max(F v) { return _mm512_reduce_max_ps(v); }
    static int32_t reduce_add(I v) { return _mm512_reduce_add_epi32(v); }
    static I zero_int() { return _mm512_setzero_si512(); }
    static I add(I a, I b) { return _mm512_add_epi32(a, b); }
    // Lanes from `first` up to, not including, `stop` keep their value; the others become `other`.
    static F keep(F v, int first, int stop, F other) {
        const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        const __mmask16 inside = _mm512_cmpge_epi32_mask(lane, _mm512_set1_epi32(first)) &
                                 _mm512_cmplt_epi32_mask(lane, _mm512_set1_epi32(stop));
        return _mm512_mask_blend_ps(inside, other, v);
    }
};

}  // namespace headlong
