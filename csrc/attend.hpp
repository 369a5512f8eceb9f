// Attention of a few queries over one chunk of positions, and the merging of chunks.
//
// Chunks start at multiples of kChunk of the absolute position. A query's result over a chunk is a
// partial softmax (largest score, sum, weighted values), and partials are merged in a fixed tree over
// the chunks (merge_tree.hpp). Which rows are processed together, and by which thread, does not enter
// the arithmetic of a row: scores sum over dimensions in order, values over positions in order.
#pragma once

#include <cstdint>

#include "kernels.hpp"
#include "kv_layer.hpp"
#include "row_steps.hpp"

namespace headlong {

// Scores of N queries with the `block` (2 vectors of) positions of one key block. Meanwhile the
// next keys and the values of these positions are fetched: nothing else hides the way to memory.
template <class V, int N>
void score_block(const uint16_t* keys, const uint16_t* values, const AttendTask& task, int query, float* scores) {
    typename V::F low[N], high[N];
    const float* q[N];
    unroll<N>([&](auto i) HEADLONG_INLINE {
        low[i] = high[i] = V::zero();
        q[i] = task.query(query + i);
    });
    const int values_each = 2 * V::W * task.padded_dim / task.head_dim;
    for (int d = 0; d < task.head_dim; ++d, keys += 2 * V::W, values += values_each) {
        __builtin_prefetch(keys + 512);
        __builtin_prefetch(values);
        const auto k0 = V::load_f16(keys), k1 = V::load_f16(keys + V::W);
        unroll<N>([&](auto i) HEADLONG_INLINE {
            const auto number = V::set1(q[i][d]);
            low[i] = V::fma(k0, number, low[i]);
            high[i] = V::fma(k1, number, high[i]);
        });
    }
    unroll<N>([&](auto i) HEADLONG_INLINE {
        V::store(scores + i * kChunk, low[i]);
        V::store(scores + i * kChunk + V::W, high[i]);
    });
}

// Turn scores into weights e^(score - largest) inside [start, stop) and 0 outside.
template <class V>
void soften(float* scores, int start, int stop, Partial& out) {
    const auto inside = [&](typename V::F v, int p, typename V::F other) HEADLONG_INLINE {
        return p >= start && p + V::W <= stop ? v : V::keep(v, start - p, stop - p, other);
    };
    const auto lowest = V::set1(-__builtin_inff());
    const int first = start / V::W * V::W;
    auto best = lowest;
    for (int p = first; p < stop; p += V::W) best = V::max(inside(V::load(scores + p), p, lowest), best);
    out.largest = V::reduce_max(best);
    auto sum = V::zero();
    for (int p = first; p < stop; p += V::W) {
        const auto weight = exp<V>(V::sub(V::load(scores + p), V::set1(out.largest)));
        const auto kept = inside(weight, p, V::zero());
        V::store(scores + p, kept);
        sum = V::add(sum, kept);
    }
    out.sum = V::reduce_add(sum);
}

// Add weight × value over positions [first, stop) of the chunk for N queries and 2 vectors of
// dimensions; the sums continue from memory so that a range may be done in pieces. Meanwhile keys of the
// next chunk are fetched, or memory would rest for half of the time.
template <class V, int N>
void add_values(const AttendTask& task, const float* weights, float* const* sums, int first, int stop, int dim) {
    typename V::F low[N], high[N];
    unroll<N>([&](auto i) HEADLONG_INLINE {
        low[i] = V::load(sums[i] + dim);
        high[i] = V::load(sums[i] + dim + V::W);
    });
    const uint16_t* values = task.values + int64_t{first} * task.padded_dim + dim;
    const uint16_t* next_keys = task.next_keys + int64_t{dim} * kChunk + first * 2 * V::W;
    for (int p = first; p < stop; ++p, values += task.padded_dim, next_keys += 2 * V::W) {
        __builtin_prefetch(next_keys);
        const auto v0 = V::load_f16(values), v1 = V::load_f16(values + V::W);
        unroll<N>([&](auto i) HEADLONG_INLINE {
            const auto weight = V::set1(weights[i * kChunk + p]);
            low[i] = V::fma(v0, weight, low[i]);
            high[i] = V::fma(v1, weight, high[i]);
        });
    }
    unroll<N>([&](auto i) HEADLONG_INLINE {
        V::store(sums[i] + dim, low[i]);
        V::store(sums[i] + dim + V::W, high[i]);
    });
}

// One tile of N queries. The positions all of them see are shared; a row that sees more, because
// it stands further on, does the rest alone. Each row still adds its positions in order.
template <class V, int N>
void attend_tile(const AttendTask& task, int query) {
    alignas(64) float scores[N * kChunk];
    int earliest = kChunk, latest = 0, shared_first = 0, shared_stop = kChunk;
    for (int i = 0; i < N; ++i) {
        const Sight sight = task.sight(query + i);
        earliest = sight.start < earliest ? sight.start : earliest;
        latest = sight.stop > latest ? sight.stop : latest;
        shared_first = sight.start > shared_first ? sight.start : shared_first;
        shared_stop = sight.stop < shared_stop ? sight.stop : shared_stop;
    }
    constexpr int kBlock = 2 * V::W;
    for (int p = earliest / kBlock * kBlock; p < latest; p += kBlock) {
        score_block<V, N>(task.keys + int64_t{p} * task.head_dim,
                          task.values + int64_t{p} * task.padded_dim, task, query, scores + p);
    }
    float* sums[N];
    for (int i = 0; i < N; ++i) {
        Partial& partial = task.partial(query + i);
        const Sight sight = task.sight(query + i);
        soften<V>(scores + i * kChunk, sight.start, sight.stop, partial);
        sums[i] = partial.values();
        for (int d = 0; d < task.padded_dim; d += V::W) V::store(sums[i] + d, V::zero());
    }
    const bool is_shared = shared_first < shared_stop;
    for (int dim = 0; dim < task.padded_dim; dim += kBlock) {
        for (int i = 0; i < N; ++i) {
            const Sight sight = task.sight(query + i);
            const int stop = is_shared ? shared_first : sight.stop;
            if (sight.start < stop) add_values<V, 1>(task, scores + i * kChunk, sums + i, sight.start, stop, dim);
        }
        if (!is_shared) continue;
        add_values<V, N>(task, scores, sums, shared_first, shared_stop, dim);
        for (int i = 0; i < N; ++i) {
            const int stop = task.sight(query + i).stop;
            if (shared_stop < stop) add_values<V, 1>(task, scores + i * kChunk, sums + i, shared_stop, stop, dim);
        }
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
