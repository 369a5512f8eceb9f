// The small steps of picking a token from a row of logits: noise, sums of probability, maxima.
//
// What they find depends on the row alone; sums are taken in an order that only the length decides.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels.hpp"
#include "row_steps.hpp"

namespace headlong {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;

// The finaliser of splitmix64. Of V only the name is needed, to keep instruction sets apart.
template <class V>
uint64_t mix(uint64_t bits) {
    bits ^= bits >> 30;
    bits *= 0xBF58476D1CE4E5B9u;
    bits ^= bits >> 27;
    bits *= 0x94D049BB133111EBu;
    return bits ^ bits >> 31;
}

// Hashed bits of consecutive or given token ids; the recipe is in ops/noise.py. Plain C++: the
// compiler makes vectors of it.
template <class V>
void noise_bits(uint64_t key, const int64_t* token_ids, int64_t first, int64_t count, uint64_t* out) {
    if (token_ids == nullptr) {
        uint64_t word = key + kGolden * static_cast<uint64_t>(first + 1);
        for (int64_t i = 0; i < count; ++i, word += kGolden) out[i] = mix<V>(word);
        return;
    }
    for (int64_t i = 0; i < count; ++i) {
        out[i] = mix<V>(key + kGolden * (static_cast<uint64_t>(token_ids[first + i]) + 1));
    }
}

// Whether any of 64 tokens has the noise it would need to win: those with a logit of at least `near`
// one amount, the others more.
template <class V>
bool any_reaches(const float* logits, const uint64_t* bits, const Needed& needed) {
    uint64_t found = 0;
    for (int i = 0; i < kMaxBlock; ++i) {
        found |= bits[i] >= (logits[i] >= needed.near ? needed.bits_near : needed.bits_far);
    }
    return found != 0;
}

// As many doubles as fill a vector register; the compiler lowers wider ones to single numbers.
template <class V>
struct Wide {
    static constexpr int kLanes = V::W / 2;
    typedef double Doubles __attribute__((vector_size(kLanes * 8)));
    typedef uint64_t Words __attribute__((vector_size(kLanes * 8)));
    typedef float Floats __attribute__((vector_size(kLanes * 4)));

    // e^x for x <= 0 to the last bit or two; below -708 it is e^-708, which no sum notices.
    HEADLONG_INLINE static Doubles exp(Doubles x) {
        x = x > -708.0 ? x : Doubles{} - 708.0;
        // Adding 1.5 × 2^52 rounds to whole numbers and leaves them in the low bits.
        const Doubles shifted = x * 1.4426950408889634 + 0x1.8p52;
        const Doubles whole = shifted - 0x1.8p52;
        Doubles r = x - whole * 0x1.62e42feep-1;  // ln 2 in two parts, the first one short
        r -= whole * 0x1.a39ef35793c76p-33;
        Doubles p = Doubles{} + 1.0 / 479001600.0;
        for (const double c : {1.0 / 39916800.0, 1.0 / 3628800.0, 1.0 / 362880.0, 1.0 / 40320.0, 1.0 / 5040.0,
                               1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0}) {
            p = p * r + c;
        }
        return p * (Doubles)(((Words)shifted + 1023) << 52);  // a cast between vectors keeps their bits
    }
};

// Σ e^((x - best) / temperature): how much probability there is, as a multiple of the best token's.
// Six digits, and a temperature that is not near 0.
template <class V>
float sum_relative(const float* x, int64_t size, float best, float temperature) {
    const auto shift = V::set1(best), factor = V::set1(1.0f / temperature);
    auto sum = V::zero();
    for (int64_t i = 0; i < size; i += V::W) {
        const auto scaled = V::mul(V::sub(load_part<V>(x + i, size - i), shift), factor);
        const int count = size - i < V::W ? static_cast<int>(size - i) : V::W;
        sum = V::add(sum, V::keep(exp<V>(scaled), 0, count, V::zero()));
    }
    return V::reduce_add(sum);
}

// The same to the last digits. In sixteen sums on every instruction set, so that all round alike.
template <class V>
double sum_relative_exactly(const float* x, int64_t size, double best, double temperature) {
    using W = Wide<V>;
    constexpr int kSums = 16, kVectors = kSums / W::kLanes;
    typename W::Doubles sums[kVectors] = {};
    const auto add = [&](const float* from) HEADLONG_INLINE {
        unroll<kVectors>([&](auto v) HEADLONG_INLINE {
            typename W::Floats part;
            std::memcpy(&part, from + v * W::kLanes, sizeof part);
            sums[v] += W::exp((__builtin_convertvector(part, typename W::Doubles) - best) / temperature);
        });
    };
    int64_t i = 0;
    for (; i + kSums <= size; i += kSums) add(x + i);
    if (i < size) {
        float rest[kSums];
        for (int lane = 0; lane < kSums; ++lane) rest[lane] = i + lane < size ? x[i + lane] : -__builtin_inff();
        add(rest);
    }
    double sum = 0.0;
    for (int lane = 0; lane < kSums; ++lane) sum += sums[lane / W::kLanes][lane % W::kLanes];
    return sum;
}

// The largest of every kMaxBlock numbers; the last block may be shorter.
template <class V>
void block_maxima(const float* x, int64_t size, float* out) {
    for (int64_t first = 0; first < size; first += kMaxBlock) {
        const int64_t stop = first + kMaxBlock < size ? first + kMaxBlock : size;
        auto best = V::set1(x[first]);
        int64_t i = first;
        for (; i + V::W <= stop; i += V::W) best = V::max(V::load(x + i), best);
        float top = V::reduce_max(best);
        for (; i < stop; ++i) top = x[i] > top ? x[i] : top;
        *out++ = top;
    }
}

// The column of the largest value, the lowest among equals; NaN counts as largest, as in numpy.
template <class V>
int64_t argmax(const float* x, int64_t size) {
    constexpr int64_t kBlock = 256;  // only one of these is searched for the largest value
    float top = -std::numeric_limits<float>::infinity();
    int64_t place = 0;
    auto broken = V::zero();
    bool has_nan = false;
    for (int64_t first = 0; first < size; first += kBlock) {
        const int64_t stop = std::min(first + kBlock, size);
        auto best = V::set1(-std::numeric_limits<float>::infinity());
        int64_t i = first;
        for (; i + V::W <= stop; i += V::W) {
            const auto v = V::load(x + i);
            best = V::max(v, best);
            broken = V::fma(v, V::zero(), broken);
        }
        float found = V::reduce_max(best);
        for (; i < stop; ++i) {
            found = x[i] > found ? x[i] : found;
            has_nan |= x[i] != x[i];
        }
        if (found > top) {
            top = found;
            place = first;
        }
    }
    if (has_nan || !(V::reduce_add(broken) == 0.0f)) {  // infinities get here as well
        for (int64_t k = 0; k < size; ++k) {
            if (x[k] != x[k]) return k;
        }
    }
    for (int64_t k = place; k < size; ++k) {
        if (x[k] == top) return k;
    }
    return 0;
}

}  // namespace headlong
