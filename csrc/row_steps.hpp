// The small steps on one row: norm, quantise, rotary, activations, additions.
//
// Every step either treats elements alone or sums them in an order that only the length decides, so
// a row's result cannot depend on other rows. Ends of rows that do not fill a vector go through a
// padded copy, never through other arithmetic.
#pragma once

#include <cstdint>
#include <cstring>

#include "formats.hpp"
#include "kernels.hpp"
#include "unroll.hpp"

namespace headlong {

template <class V>
typename V::F load_part(const float* p, int64_t count) {
    if (count >= V::W) return V::load(p);
    float lanes[V::W] = {};
    std::memcpy(lanes, p, count * sizeof(float));
    return V::load(lanes);
}

template <class V>
void store_part(float* p, typename V::F value, int64_t count) {
    if (count >= V::W) return V::store(p, value);
    float lanes[V::W];
    V::store(lanes, value);
    std::memcpy(p, lanes, count * sizeof(float));
}

// e^x with a relative error below 2e-7; below -87 it is e^-87, which no sum notices.
template <class V>
typename V::F exp(typename V::F x) {
    x = V::min(V::max(x, V::set1(-87.0f)), V::set1(88.0f));
    const auto n = V::to_int(V::mul(x, V::set1(1.44269504f)));
    const auto whole = V::to_float(n);
    auto r = V::fma(whole, V::set1(-0.693359375f), x);  // ln 2 in two parts, the first one short
    r = V::fma(whole, V::set1(2.12194440e-4f), r);
    auto p = V::set1(1.9875691500e-4f);
    for (const float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 0.5f}) {
        p = V::fma(p, r, V::set1(c));
    }
    p = V::add(V::fma(p, V::mul(r, r), r), V::set1(1.0f));
    return V::mul(p, V::pow2(n));
}

// out = x / sqrt(mean(x²) + eps) * weight; out may be x.
template <class V>
void rms_norm(const float* x, const float* weight, float eps, int64_t size, float* out) {
    auto even = V::zero(), odd = V::zero();
    int64_t i = 0;
    for (; i + 2 * V::W <= size; i += 2 * V::W) {
        const auto a = V::load(x + i), b = V::load(x + i + V::W);
        even = V::fma(a, a, even);
        odd = V::fma(b, b, odd);
    }
    for (; i < size; i += V::W) {
        const auto a = load_part<V>(x + i, size - i);
        even = V::fma(a, a, even);
    }
    const float mean = V::reduce_add(V::add(even, odd)) / static_cast<float>(size);
    const auto factor = V::set1(1.0f / __builtin_sqrtf(mean + eps));
    for (i = 0; i < size; i += V::W) {
        const auto scaled = V::mul(load_part<V>(x + i, size - i), factor);
        store_part<V>(out + i, V::mul(scaled, load_part<V>(weight + i, size - i)), size - i);
    }
}

// Quantise whole groups of 32 to 8 bits, each with its own scale.
template <class V>
void quantise(const float* x, int64_t num_groups, ActGroup* out) {
    constexpr int kParts = kGroup / V::W;
    for (int64_t g = 0; g < num_groups; ++g, x += kGroup, ++out) {
        typename V::F part[kParts];
        auto largest = V::zero(), broken = V::zero();
        for (int i = 0; i < kParts; ++i) {
            part[i] = V::load(x + i * V::W);
            largest = V::max(V::abs(part[i]), largest);
            broken = V::fma(part[i], V::zero(), broken);  // NaN if any value is not finite
        }
        if (!(V::reduce_add(broken) == 0.0f)) {  // keep the NaN, so that it is noticed
            *out = ActGroup{{}, __builtin_nanf(""), __builtin_nanf(""), 0, {}};
            continue;
        }
        const float size = V::reduce_max(largest);
        const float scale = size / 127.0f;
        // The inverse of a tiny group would be infinite; such a group is zero for all that follows.
        const auto inverse = V::set1(size > 1e-35f ? 127.0f / size : 0.0f);
        int32_t sum = 0;
        for (int half = 0; half < 2; ++half) {
            auto total = V::zero_int();
            for (int i = half * kParts / 2; i < (half + 1) * kParts / 2; ++i) {
                const auto q = V::to_int(V::mul(part[i], inverse));
                total = V::add(total, q);
                V::store_i8(out->q + i * V::W, q);
            }
            const int32_t half_sum = V::reduce_add(total);
            out->minus_halves[half] = -32 * half_sum;
            sum += half_sum;
        }
        out->scale = scale;
        out->sum = scale * static_cast<float>(sum);
        out->minus_offset = -128 * sum;
    }
}

// Turn the pairs (i, i + half) of one head by its position's angles, in place.
template <class V>
void rotate(float* head, const float* cosines, const float* sines, int64_t half) {
    for (int64_t i = 0; i < half; i += V::W) {
        const int64_t count = half - i;
        const auto low = load_part<V>(head + i, count), high = load_part<V>(head + half + i, count);
        const auto c = load_part<V>(cosines + i, count), s = load_part<V>(sines + i, count);
        store_part<V>(head + i, V::sub(V::mul(low, c), V::mul(high, s)), count);
        store_part<V>(head + half + i, V::add(V::mul(high, c), V::mul(low, s)), count);
    }
}

template <class V>
typename V::F silu(typename V::F x) {
    return V::div(x, V::add(V::set1(1.0f), exp<V>(V::sub(V::zero(), x))));
}

// 0.5 x (1 + tanh(u)) is x * sigmoid(2u), which needs one exponential and no tanh.
template <class V>
typename V::F gelu_tanh(typename V::F x) {
    const auto cube = V::mul(V::mul(x, x), x);
    const auto u = V::mul(V::set1(0.7978845608f), V::fma(V::set1(0.044715f), cube, x));
    return V::div(x, V::add(V::set1(1.0f), exp<V>(V::mul(V::set1(-2.0f), u))));
}

template <class V>
typename V::F relu_squared(typename V::F x) {
    // A NaN must stay one: the operand that max returns for it is the second.
    const auto positive = V::max(V::zero(), x);
    return V::mul(positive, positive);
}

// out = activation(gate) * up, or activation(gate) where up is null; out may be either of them.
template <class V>
void activate(const float* gate, const float* up, Activation activation, int64_t size, float* out) {
    for (int64_t i = 0; i < size; i += V::W) {
        const auto g = load_part<V>(gate + i, size - i);
        const auto active = activation == Activation::silu        ? silu<V>(g)
                            : activation == Activation::gelu_tanh ? gelu_tanh<V>(g)
                                                                  : relu_squared<V>(g);
        const auto result = up == nullptr ? active : V::mul(active, load_part<V>(up + i, size - i));
        store_part<V>(out + i, result, size - i);
    }
}

// sum += scale * x.
template <class V>
void add_scaled(const float* x, float scale, int64_t size, float* sum) {
    for (int64_t i = 0; i < size; i += V::W) {
        const auto a = load_part<V>(x + i, size - i), b = load_part<V>(sum + i, size - i);
        store_part<V>(sum + i, V::fma(a, V::set1(scale), b), size - i);
    }
}

// out = x + silu(y).
template <class V>
void add_silu(const float* x, const float* y, int64_t size, float* out) {
    for (int64_t i = 0; i < size; i += V::W) {
        const auto a = load_part<V>(x + i, size - i);
        store_part<V>(out + i, V::add(a, silu<V>(load_part<V>(y + i, size - i))), size - i);
    }
}

// out = x + y; out may be either of them.
template <class V>
void add(const float* x, const float* y, int64_t size, float* out) {
    for (int64_t i = 0; i < size; i += V::W) {
        const auto a = load_part<V>(x + i, size - i), b = load_part<V>(y + i, size - i);
        store_part<V>(out + i, V::add(a, b), size - i);
    }
}

// Round a vector to 16-bit integers whose Euclidean norm is kShort; return what 1 of them stands for.
template <class V>
float shorten(const float* x, int64_t size, int16_t* out) {
    auto squares = V::zero();
    for (int64_t i = 0; i < size; i += V::W) {
        const auto part = load_part<V>(x + i, size - i);
        squares = V::fma(part, part, squares);
    }
    const float norm = __builtin_sqrtf(V::reduce_add(squares));
    if (!(norm < __builtin_inff())) {  // keep the NaN, so that it is noticed
        std::memset(out, 0, size * sizeof(int16_t));
        return __builtin_nanf("");
    }
    // The inverse of a tiny norm would be infinite; such a vector is zero for all that follows.
    const auto inverse = V::set1(norm > 1e-30f ? kShort / norm : 0.0f);
    for (int64_t i = 0; i < size; i += V::W) {
        int16_t lanes[V::W];
        V::store_i16(lanes, V::to_int(V::mul(load_part<V>(x + i, size - i), inverse)));
        std::memcpy(out + i, lanes, (size - i < V::W ? size - i : V::W) * sizeof(int16_t));
    }
    return norm / kShort;
}

// The largest of many numbers, read as fast as memory gives them; what is left over is not read.
template <class V>
float read_all(const float* first, int64_t count) {
    auto even = V::zero(), odd = V::zero();
    for (int64_t i = 0; i + 32 <= count; i += 32) {
        __builtin_prefetch(first + i + 256);
        __builtin_prefetch(first + i + 272);
        for (int64_t k = i; k < i + 32; k += 2 * V::W) {
            even = V::max(V::load(first + k), even);
            odd = V::max(V::load(first + k + V::W), odd);
        }
    }
    return V::reduce_max(V::max(even, odd));
}

}  // namespace headlong
