// The steps of recurrent mixers on vectors: the short convolution, and rows that update and read a block of a matrix.
//
// Every row takes the same step on the same numbers, whether it is new or applied again, so it leaves the same bits.
#pragma once

#include "kernels.hpp"
#include "row_steps.hpp"

namespace headlong {

// out = silu(sum of inputs × factors + bias), channel by channel; the oldest row comes first. The bias may be null.
template <class V>
void convolve(const float* const* inputs, const float* const* factors, const float* bias, int width, int64_t size,
              float* out) {
    for (int64_t i = 0; i < size; i += V::W) {
        auto sum = V::mul(load_part<V>(inputs[0] + i, size - i), load_part<V>(factors[0] + i, size - i));
        for (int tap = 1; tap < width; ++tap) {
            sum = V::fma(load_part<V>(inputs[tap] + i, size - i), load_part<V>(factors[tap] + i, size - i), sum);
        }
        if (bias != nullptr) sum = V::add(sum, load_part<V>(bias + i, size - i));
        store_part<V>(out + i, silu<V>(sum), size - i);
    }
}

// x *= sigmoid(gate).
template <class V>
void multiply_gate(float* x, const float* gate, int64_t size) {
    for (int64_t i = 0; i < size; i += V::W) {
        const auto divisor = V::add(V::set1(1.0f), exp<V>(V::sub(V::zero(), load_part<V>(gate + i, size - i))));
        store_part<V>(x + i, V::div(load_part<V>(x + i, size - i), divisor), size - i);
    }
}

// What a key recalls: memoryᵀ key.
template <class V>
typename V::F recall(const float* memory, const float* key, int64_t size) {
    constexpr int kSums = 4;
    const int64_t whole = size / kSums * kSums;
    typename V::F sums[kSums];
    unroll<kSums>([&](auto s) HEADLONG_INLINE { sums[s] = V::zero(); });
    for (int64_t i = 0; i < whole; i += kSums) {
        unroll<kSums>([&](auto s) HEADLONG_INLINE {
            sums[s] = V::fma(V::set1(key[i + s]), V::load(memory + (i + s) * V::W), sums[s]);
        });
    }
    for (int64_t i = whole; i < size; ++i) sums[0] = V::fma(V::set1(key[i]), V::load(memory + i * V::W), sums[0]);
    return V::add(V::add(sums[0], sums[1]), V::add(sums[2], sums[3]));
}

// One row: memory = decay memory + key ⊗ strength (value - what decay memory recalls, where the task corrects).
// With a query, return memoryᵀ query.
template <class V, bool kReads>
typename V::F recurrent_row(const RecurrentTask& task, int64_t row) {
    constexpr int kSums = 4;
    const float* key = task.keys + row * task.key_stride;
    const float* query = kReads ? task.queries + row * task.query_stride : nullptr;
    float* memory = task.memory;
    const int64_t size = task.key_dim, whole = size / kSums * kSums;
    const auto decay = V::set1(task.decays[row * task.factor_stride]);
    auto value = V::load(task.values + row * task.value_stride);
    if (task.corrects) value = V::sub(value, V::mul(decay, recall<V>(memory, key, size)));
    const auto change = V::mul(V::set1(task.strengths[row * task.factor_stride]), value);
    typename V::F sums[kSums];
    unroll<kSums>([&](auto s) HEADLONG_INLINE { sums[s] = V::zero(); });
    const auto update = [&](int64_t i, typename V::F& sum) HEADLONG_INLINE {
        const auto updated = V::fma(V::set1(key[i]), change, V::mul(decay, V::load(memory + i * V::W)));
        V::store(memory + i * V::W, updated);
        if constexpr (kReads) sum = V::fma(V::set1(query[i]), updated, sum);
    };
    for (int64_t i = 0; i < whole; i += kSums) {
        unroll<kSums>([&](auto s) HEADLONG_INLINE { update(i + s, sums[s]); });
    }
    for (int64_t i = whole; i < size; ++i) update(i, sums[0]);
    return V::add(V::add(sums[0], sums[1]), V::add(sums[2], sums[3]));
}

// All rows of a task, in order.
template <class V>
void recurrent_rows(const RecurrentTask& task) {
    for (int64_t row = 0; row < task.num_rows; ++row) {
        if (task.queries == nullptr) {
            recurrent_row<V, false>(task, row);
        } else {
            V::store(task.read + row * task.read_stride, recurrent_row<V, true>(task, row));
        }
    }
}

}  // namespace headlong
