// Attention of a few queries over one chunk of positions, and the merging of chunks.
//
// Chunks start at multiples of kChunk of the absolute position. A query's result over a chunk is a
// partial softmax (largest score, sum, weighted values), and partials are merged in a fixed tree over
// the chunks (merge_tree.hpp). Which rows are processed together, and by which thread, does not enter
// the arithmetic of a row: products are sums of integers, and positions that it does not see weigh 0.
#pragma once

#include <cstdint>

#include "fetch_ahead.hpp"
#include "kernels.hpp"
#include "kv_layer.hpp"
#include "matmul.hpp"
#include "row_steps.hpp"

namespace headlong {

// Lines of memory that two vectors of pairs fill.
template <class V>
constexpr int kPairLines = 2 * V::W * 4 / 64;

// Scores of N queries with the `block` (2 vectors of) positions of one key block, the first of which is
// `position`. Meanwhile it prefetches the next keys and the values of these positions: nothing else hides
// the latency of memory.
template <class V, int N>
HEADLONG_INLINE inline void score_block(const AttendTask& task, int position, int query, float* scores) {
    typename V::I low[N], high[N];
    const int16_t* q[N];
    unroll<N>([&](auto i) HEADLONG_INLINE {
        low[i] = high[i] = V::zero_int();
        q[i] = task.query(query + i).values();
    });
    const int16_t* keys = task.keys + int64_t{position} * task.key_dim;
    const int16_t* values = task.values + int64_t{position} * task.padded_dim;
    const int values_each = 4 * V::W * task.padded_dim / task.key_dim;
    for (int d = 0; d < task.key_dim; d += 2, keys += 4 * V::W, values += values_each) {
        unroll<kPairLines<V>>([&](auto line) HEADLONG_INLINE {
            fetch_soon(keys + 1024 + line * 32);
            fetch_soon(values + line * 32);
        });
        const auto k0 = V::load_int(keys), k1 = V::load_int(keys + 2 * V::W);
        unroll<N>([&](auto i) HEADLONG_INLINE {
            const auto numbers = V::set1_int(q[i] + d);
            low[i] = V::dot_pairs(low[i], k0, numbers);
            high[i] = V::dot_pairs(high[i], k1, numbers);
        });
    }
    const auto scale0 = V::load(task.key_scales + position), scale1 = V::load(task.key_scales + position + V::W);
    unroll<N>([&](auto i) HEADLONG_INLINE {
        const auto scale = V::set1(task.query(query + i).scale);
        V::store(scores + i * kChunk + position, V::mul(V::to_float(low[i]), V::mul(scale0, scale)));
        V::store(scores + i * kChunk + position + V::W, V::mul(V::to_float(high[i]), V::mul(scale1, scale)));
    });
}

// Turn scores into weights e^(score - largest) inside `sight` and 0 outside; the partial gets what they add up to.
// What values are multiplied with has their scales in it and is rounded to integers for the whole chunk; return
// what 1 of these stands for.
template <class V, bool kIsWhole>
float soften(const float* scores, const float* value_scales, Sight sight, int16_t* weights, Partial& out) {
    constexpr int kVectors = kChunk / V::W;
    const auto inside = [&](typename V::F v, int p, typename V::F other) HEADLONG_INLINE {
        return kIsWhole ? v : V::keep(v, sight.start - p, sight.stop - p, other);
    };
    typename V::F part[kVectors];
    const auto lowest = V::set1(-__builtin_inff());
    auto best = lowest;
    unroll<kVectors>([&](auto v) HEADLONG_INLINE {
        part[v] = inside(V::load(scores + v * V::W), v * V::W, lowest);
        best = V::max(part[v], best);
    });
    out.largest = V::reduce_max(best);
    const auto largest = V::set1(out.largest);
    auto sum = V::zero(), scaled_sum = V::zero(), scaled_best = V::zero();
    unroll<kVectors>([&](auto v) HEADLONG_INLINE {
        const auto weight = inside(exp<V>(V::sub(part[v], largest)), v * V::W, V::zero());
        const auto scaled = V::mul(weight, V::load(value_scales + v * V::W));
        part[v] = inside(scaled, v * V::W, V::zero());
        sum = V::add(sum, weight);
        scaled_sum = V::add(scaled_sum, part[v]);
        scaled_best = V::max(part[v], scaled_best);
    });
    out.sum = V::reduce_add(sum);
    const float total = V::reduce_add(scaled_sum), top = V::reduce_max(scaled_best);
    const float by_top = kShort / top, by_total = kMostWeight / total;
    const float factor = top > 1e-30f ? (by_top < by_total ? by_top : by_total) : 0.0f;
    unroll<kVectors>([&](auto v) HEADLONG_INLINE {
        V::store_i16(weights + v * V::W, V::to_int(V::mul(part[v], V::set1(factor))));
    });
    if (total != total) return total;  // keep the NaN, so that it is noticed
    return factor > 0.0f ? 1.0f / factor : 0.0f;
}

// Sum weight × value over the positions `seen`, two at a time, for N queries and 2 vectors of dimensions. Meanwhile
// it prefetches keys of the next chunk, or memory would be idle half of the time.
template <class V, int N>
void add_values(
    const AttendTask& task, const int16_t* weights, const float* scales, int query, Sight seen, int dim) {
    typename V::I low[N], high[N];
    unroll<N>([&](auto i) HEADLONG_INLINE { low[i] = high[i] = V::zero_int(); });
    const int first = seen.start / 2 * 2;
    const int16_t* values = task.values + int64_t{first} * task.padded_dim + 2 * dim;
    const int16_t* next_keys = task.next_keys + int64_t{dim} * kChunk + first * 2 * V::W;
    for (int p = first; p < seen.stop; p += 2, values += 2 * task.padded_dim, next_keys += 4 * V::W) {
        unroll<kPairLines<V>>([&](auto line) HEADLONG_INLINE { fetch_soon(next_keys + line * 32); });
        const auto v0 = V::load_int(values), v1 = V::load_int(values + 2 * V::W);
        unroll<N>([&](auto i) HEADLONG_INLINE {
            const auto weight = V::set1_int(weights + i * kChunk + p);
            low[i] = V::dot_pairs(low[i], v0, weight);
            high[i] = V::dot_pairs(high[i], v1, weight);
        });
    }
    unroll<N>([&](auto i) HEADLONG_INLINE {
        float* sums = task.partial(query + i).values() + dim;
        V::store(sums, V::mul(V::to_float(low[i]), V::set1(scales[i])));
        V::store(sums + V::W, V::mul(V::to_float(high[i]), V::set1(scales[i])));
    });
}

// One tile of N queries, over the positions that any of them sees.
template <class V, int N>
void attend_tile(const AttendTask& task, int query) {
    constexpr int kBlock = 2 * V::W;
    alignas(64) float scores[N * kChunk];
    alignas(64) int16_t weights[N * kChunk];
    float scales[N];
    Sight seen{kChunk, 0};
    for (int i = 0; i < N; ++i) {
        const Sight sight = task.sight(query + i);
        seen.start = sight.start < seen.start ? sight.start : seen.start;
        seen.stop = sight.stop > seen.stop ? sight.stop : seen.stop;
    }
    for (int p = seen.start / kBlock * kBlock; p < seen.stop; p += kBlock) score_block<V, N>(task, p, query, scores);
    for (int i = 0; i < N; ++i) {
        const Sight sight = task.sight(query + i);
        const auto soften_all = sight.start == 0 && sight.stop == kChunk ? soften<V, true> : soften<V, false>;
        scales[i] = soften_all(
            scores + i * kChunk, task.value_scales, sight, weights + i * kChunk, task.partial(query + i));
    }
    for (int dim = 0; dim < task.padded_dim; dim += kBlock) {
        add_values<V, N>(task, weights, scales, query, seen, dim);
    }
}

template <class V>
void attend(const AttendTask& task) {
    for (int query = 0; query < task.num_queries();) {
        const int left = task.num_queries() - query;
        const int count = left < V::kQueryTile ? left : V::kQueryTile;
        with_rows<V::kQueryTile>(count, [&]<int N>() { attend_tile<V, N>(task, query); });
        query += count;
    }
}

// Take a chunk's partial into a query's running result; an empty one changes nothing.
template <class V>
void merge(const Partial& part, int size, Partial& running) {
    if (part.sum == 0.0f) return;
    const float largest = part.largest > running.largest ? part.largest : running.largest;
    float lanes[V::W];
    V::store(lanes, exp<V>(V::set1(running.largest - largest)));
    const auto old_factor = V::set1(lanes[0]);
    V::store(lanes, exp<V>(V::set1(part.largest - largest)));
    const auto new_factor = V::set1(lanes[0]);
    V::store(lanes, V::fma(V::set1(part.sum), new_factor, V::mul(V::set1(running.sum), old_factor)));
    running.sum = lanes[0];
    running.largest = largest;
    for (int d = 0; d < size; d += V::W) {
        const auto old_value = V::mul(V::load(running.values() + d), old_factor);
        V::store(running.values() + d, V::fma(V::load(part.values() + d), new_factor, old_value));
    }
}

// Write a query's finished result, `size` numbers.
template <class V>
void finish(const Partial& running, int size, float* out) {
    const auto factor = V::set1(1.0f / running.sum);
    for (int d = 0; d < size; d += V::W) {
        store_part<V>(out + d, V::mul(V::load(running.values() + d), factor), size - d);
    }
}

}  // namespace headlong
