// Vectors of 8 floats in plain C++; the compiler maps them to whatever the target has.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace headlong {

// binary16 → float by bit arithmetic; exact, subnormals and infinities included.
inline float half_to_float(uint16_t half) {
    const uint32_t sign = uint32_t{half & 0x8000u} << 16;
    const uint32_t body = half & 0x7fffu;
    if (body >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (body & 0x3ffu) << 13);
    // As a float exponent the half's is 112 too small; the product also normalises subnormals.
    const float magnitude = std::bit_cast<float>(body << 13) * 0x1p112f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

// float → binary16, to nearest, ties to even; too large becomes infinite.
inline uint16_t float_to_half(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
    const uint32_t body = bits & 0x7fffffffu;
    if (body > 0x7f800000u) return sign | 0x7e00u;
    if (body >= 0x477ff000u) return sign | 0x7c00u;
    if (body < 0x38800000u) {  // subnormal as a half: let the float unit round at the right bit
        const float shifted = std::bit_cast<float>(body) + 0.5f;
        return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
    }
    const uint32_t rounded = body + 0xfffu + (body >> 13 & 1u) - 0x38000000u;
    return static_cast<uint16_t>(sign | rounded >> 13);
}

struct PortableVec {
    static constexpr int W = 8;
    static constexpr int kQueryTile = 4;
    typedef float F __attribute__((vector_size(32), aligned(16)));
    typedef int32_t I __attribute__((vector_size(32), aligned(16)));

    static F load(const float* p) { F v; std::memcpy(&v, p, sizeof v); return v; }
    static void store(float* p, F v) { std::memcpy(p, &v, sizeof v); }
    static F set1(float x) { return F{x, x, x, x, x, x, x, x}; }
    static F zero() { return set1(0.0f); }
    static F add(F a, F b) { return a + b; }
    static F sub(F a, F b) { return a - b; }
    static F mul(F a, F b) { return a * b; }
    static F div(F a, F b) { return a / b; }
    static F fma(F a, F b, F c) { return a * b + c; }
    static F max(F a, F b) { return a > b ? a : b; }
    static F min(F a, F b) { return a < b ? a : b; }
    static F abs(F a) { return std::bit_cast<F>(std::bit_cast<I>(a) & 0x7fffffff); }
    // Adding 1.5 × 2^23 leaves the nearest integer in the low bits; good for |a| < 2^22.
    static I to_int(F a) {
        return std::bit_cast<I>(a + set1(12582912.0f)) - std::bit_cast<I>(set1(12582912.0f));
    }
    static F to_float(I a) { return __builtin_convertvector(a, F); }
    static F pow2(I n) { return std::bit_cast<F>((n + 127) << 23); }
    static F load_f16(const uint16_t* p) {
        F v;
        for (int i = 0; i < W; ++i) v[i] = half_to_float(p[i]);
        return v;
    }
    static F load_bf16(const uint16_t* p) {
        I v;
        for (int i = 0; i < W; ++i) v[i] = int32_t(uint32_t{p[i]} << 16);
        return std::bit_cast<F>(v);
    }
    static I load_u8(const uint8_t* p) {
        I v;
        for (int i = 0; i < W; ++i) v[i] = p[i];
        return v;
    }
    static I load_i8(const uint8_t* p) {
        I v;
        for (int i = 0; i < W; ++i) v[i] = static_cast<int8_t>(p[i]);
        return v;
    }
    static void store_i8(int8_t* p, I v) {
        for (int i = 0; i < W; ++i) p[i] = static_cast<int8_t>(v[i]);
    }
    static void store_i16(int16_t* p, I v) {
        for (int i = 0; i < W; ++i) p[i] = static_cast<int16_t>(v[i]);
    }
    // 32 bits a lane: an integer, or two of 16 bits.
    static I load_int(const void* p) { I v; std::memcpy(&v, p, sizeof v); return v; }
    static I set1_int(const void* p) {
        int32_t bits;
        std::memcpy(&bits, p, sizeof bits);
        return I{bits, bits, bits, bits, bits, bits, bits, bits};
    }
    // sum + the products of both 16-bit integers of a lane.
    static I dot_pairs(I sum, I a, I b) {
        return sum + (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
    }
    static float reduce_add(F v) {
        return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
    }
    static float reduce_max(F v) {
        float best = v[0];
        for (int i = 1; i < W; ++i) best = v[i] > best ? v[i] : best;
        return best;
    }
    static int32_t reduce_add(I v) {
        int32_t sum = 0;
        for (int i = 0; i < W; ++i) sum += v[i];
        return sum;
    }
    static I zero_int() { return I{}; }
    static I add(I a, I b) { return a + b; }
    // Lanes from `first` up to, not including, `stop` keep their value; the others become `other`.
    static F keep(F v, int first, int stop, F other) {
        const I lane = I{0, 1, 2, 3, 4, 5, 6, 7};
        return ((lane >= first) & (lane < stop)) ? v : other;
    }
};

}  // namespace headlong
