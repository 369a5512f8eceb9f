#include <algorithm>
#include <cmath>

#include "merge_tree.hpp"
#include "pass.hpp"

namespace headlong {

namespace {
// Heads that are whole groups can be quantised one by one.
bool has_whole_groups(const Attention& block) { return block.head_dim % kGroup == 0; }
}  // namespace

Pass::Entry Pass::entry(const Worker& worker, const Attention& block) const {
    if (!block.beside_norm) return {x(worker), &block.norm};
    return {x(worker), &block.norm, input_.beside, &*block.beside_norm};
}

void Pass::remember(Worker& worker, const Attention& block, const std::vector<KVLayer*>& caches) {
    const Activations entered = enter(worker, entry(worker, block), {&block.key, &block.value});
    project_heads(worker, entered, block, {0, block.num_kv_heads}, caches);
}

void Pass::attention(Worker& worker, const Attention& block, const std::vector<KVLayer*>& caches) {
    const Activations entered = enter(worker, entry(worker, block), {&block.query, &block.key, &block.value});
    project_heads(worker, entered, block, {block.num_heads, block.num_kv_heads}, caches);
    worker.barrier();
    thread_local static AttendShares shares;
    shares.share_out(input_.spans, block, worker.count);
    attend(worker, block, caches, shares);
    worker.barrier();
    if (merge_cuts(worker, block, *caches.front(), shares)) worker.barrier();

    const int64_t size = block.query_size();
    if (block.output.weight->is_quantised() && !has_whole_groups(block)) {
        const Range own = worker.share(rows() * (size / kGroup));
        for (int64_t g = own.first; g < own.stop; ++g) {
            k_.quantise(inner_values_ + g * kGroup, 1, inner_groups_.mine(worker) + g);
            inner_groups_.publish(worker, g, 1);
        }
        worker.barrier();
    }
    const Activations attended{inner_groups_.mine(worker), size_t(size / kGroup), inner_values_, size_t(size)};
    add_result(worker, attended, block.output, block.output_norm);
}

// Project, turn and store the queries, keys and values of all rows. Few rows: a worker does whole heads, so that
// nobody waits in between and nothing travels to another core; heads that share a kv head lie side by side, as
// they do when they attend. Many rows: all workers share evenly first the products, then the rest.
void Pass::project_heads(
    Worker& worker, const Activations& x, const Attention& block, Heads heads, const std::vector<KVLayer*>& caches) const {
    const int64_t stride = heads.count() * block.head_dim;
    if (is_short() && block.head_dim % k_.tile_width == 0) {
        const Range own = worker.share(heads.count());
        const int64_t tiles = block.head_dim / k_.tile_width;
        for (int64_t item = own.first; item < own.stop; ++item) {
            const Head head = heads.at(item);
            const Linear& linear = head.is_query ? block.query : head.is_key ? block.key : block.value;
            float* projected = projected_.mine(worker);
            multiply_tiles(x, linear, head.index * tiles, (head.index + 1) * tiles,
                           projected + head.place * block.head_dim, stride);
            turn_and_store(worker, block, head, projected, stride, {0, rows()}, caches);
        }
        return;
    }
    float* projected = projected_.whole();
    if (heads.num_queries > 0) {
        multiply(worker, x, {&block.query, &block.key, &block.value}, projected, stride);
    } else {
        multiply(worker, x, {&block.key, &block.value}, projected, stride);
    }
    worker.barrier();
    const Range own_rows = worker.share(rows());
    for (int64_t item = 0; item < heads.count(); ++item) {
        turn_and_store(worker, block, heads.at(item), projected, stride, own_rows, caches);
    }
}

// Norm and turn a head of queries or keys, round it, and write keys and values to the caches.
void Pass::turn_and_store(
    const Worker& worker, const Attention& block, const Head& head, float* projected, int64_t stride,
    Range own_rows, const std::vector<KVLayer*>& caches) const {
    const int dim = block.head_dim, heads_each = block.heads_per_kv();
    const int64_t kv_head = head.is_query ? head.index / heads_each : head.index, query_bytes = Query::bytes(dim);
    int16_t shorts[kMostHeadDim];
    size_t s = 0;
    for (int64_t row = own_rows.first; row < own_rows.stop; ++row) {
        while (row >= input_.spans[s].first_row + input_.spans[s].num_rows) ++s;
        const Span& span = input_.spans[s];
        const int64_t position = span.first_position + row - span.first_row;
        float* numbers = projected + row * stride + head.place * dim;
        if (head.is_query || head.is_key) {
            const std::optional<Norm>& norm = head.is_query ? block.query_norm : block.key_norm;
            if (norm) k_.rms_norm(numbers, norm->weight.data(), norm->eps, dim, numbers);
            k_.rotate(numbers, block.rope->cosines(position), block.rope->sines(position), dim / 2);
        }
        if (head.is_query) {
            const int64_t place = (first_query(kv_head, row, heads_each) + head.index % heads_each) * query_bytes;
            Query& query = *reinterpret_cast<Query*>(queries_.mine(worker) + place);
            query.scale = block.scale * k_.shorten(numbers, dim, query.values());
            queries_.publish(worker, place, query_bytes);
            continue;
        }
        const float scale = k_.shorten(numbers, dim, shorts);
        if (head.is_key) {
            caches[s]->write_key(head.index, position, shorts, scale);
        } else {
            caches[s]->write_value(head.index, position, shorts, scale);
        }
    }
}

// The attention of an item over one chunk.
AttendTask Pass::make_task(
    const Worker& worker, const Attention& block, const KVLayer& cache, const AttendItem& item, int64_t chunk) const {
    const int heads_per_row = block.heads_per_kv();
    const int64_t start = chunk * kChunk, bytes = Query::bytes(block.head_dim);
    const Span& span = input_.spans[item.span];
    return AttendTask{
        .keys = cache.key_block(item.kv_head, start),
        .values = cache.value_pairs(item.kv_head, start),
        .key_scales = cache.key_scales(item.kv_head, start),
        .value_scales = cache.value_scales(item.kv_head, start),
        .next_keys = cache.key_block(item.kv_head, start + kChunk),
        .queries = queries_.mine(worker) + first_query(item.kv_head, item.first_row, heads_per_row) * bytes,
        .query_bytes = static_cast<size_t>(bytes),
        .num_rows = static_cast<int>(item.num_rows),
        .heads_per_row = heads_per_row,
        .head_dim = block.head_dim,
        .padded_dim = cache.padded_dim,
        .first_position = span.first_position + item.first_row - span.first_row - start,
        .window = block.window,
        .chunk = kChunk,
        .partials = nullptr,
        .partial_bytes = Partial::bytes(cache.padded_dim),
    };
}

// Where a worker leaves its part of an item that is not its alone. It has two such items at most: one that its share
// begins in the middle of, and one that its share ends in the middle of.
int64_t Pass::cut_place(int owner, Range chunks) const {
    return owner * page_apart<uint8_t>(2 * bytes_per_cut_) + (chunks.first > 0 ? 0 : bytes_per_cut_);
}

// Publish to every worker the queries that it is going to merge.
void Pass::publish_cut(
    const Worker& worker, const AttendItem& item, int64_t place, size_t num_runs, size_t query_bytes) const {
    for (int reader = 0; reader < worker.count; ++reader) {
        const Range queries = worker.share_of(reader, item.num_queries);
        for (size_t run = 0; run < num_runs; ++run) {
            const int64_t first = place + (run * item.num_queries + queries.first) * query_bytes;
            partials_.publish_to(reader, worker, first, (queries.stop - queries.first) * query_bytes);
        }
    }
}

void Pass::attend(
    Worker& worker, const Attention& block, const std::vector<KVLayer*>& caches, const AttendShares& shares) const {
    const std::vector<AttendItem>& items = shares.items();
    for (size_t i = 0; i < items.size(); ++i) {
        const Range own = shares.chunks_of(items[i], worker.index);
        if (own.first >= own.stop) continue;
        const bool is_last = i + 1 == items.size();
        const int16_t* next_keys = is_last ? nullptr : caches[items[i + 1].span]->key_block(items[i + 1].kv_head, 0);
        attend_item(worker, block, *caches[items[i].span], items[i], own, next_keys);
    }
}

// Take an item through its chunks, or those of them that are this worker's, merging as it goes.
void Pass::attend_item(
    Worker& worker, const Attention& block, const KVLayer& cache, const AttendItem& item, Range own,
    const int16_t* next_keys) const {
    alignas(64) thread_local static Scratch scratch;
    const bool is_whole = own.stop - own.first == item.num_chunks;
    const size_t bytes = Partial::bytes(cache.padded_dim), per_run = item.num_queries * bytes;
    const int64_t place = cut_place(worker.index, own);
    uint8_t* parts =
        is_whole ? scratch.reserve<uint8_t>(most_waiting(item.num_chunks) * per_run) : partials_.mine(worker) + place;
    MergeTree tree([&](const uint8_t* right, uint8_t* left) { merge_all(right, cache, item.num_queries, left); });
    for (int64_t chunk = own.first; chunk < own.stop; ++chunk) {
        AttendTask task = make_task(worker, block, cache, item, chunk);
        if (chunk + 1 == own.stop && next_keys != nullptr) task.next_keys = next_keys;
        task.partials = parts + tree.num_waiting() * per_run;
        k_.attend(task);
        tree.add({chunk, 1, task.partials});
    }
    if (!is_whole) return publish_cut(worker, item, place, tree.num_waiting(), bytes);
    const uint8_t* results = tree.finish();
    for (int64_t query = 0; query < item.num_queries; ++query) {
        finish_query(worker, block, *reinterpret_cast<const Partial*>(results + query * bytes), item, query);
    }
}

// Partials of some queries into those of the chunks left of theirs.
void Pass::merge_all(const uint8_t* right, const KVLayer& shape, int64_t num_queries, uint8_t* left) const {
    const size_t bytes = Partial::bytes(shape.padded_dim);
    for (int64_t q = 0; q < num_queries; ++q, right += bytes, left += bytes) {
        k_.merge(*reinterpret_cast<const Partial*>(right), shape.padded_dim, *reinterpret_cast<Partial*>(left));
    }
}

// Merge what several workers made of an item, each taking some of its queries. Returns whether there was any.
bool Pass::merge_cuts(Worker& worker, const Attention& block, const KVLayer& shape, const AttendShares& shares) const {
    const size_t bytes = Partial::bytes(shape.padded_dim);
    bool is_any_cut = false;
    for (const AttendItem& item : shares.items()) {
        if (!shares.is_cut(item)) continue;
        is_any_cut = true;
        const Range own = worker.share(item.num_queries);
        for (int64_t query = own.first; query < own.stop; ++query) {
            MergeTree tree([&](const uint8_t* right, uint8_t* left) { merge_all(right, shape, 1, left); });
            for (int owner = 0; owner < worker.count; ++owner) {
                const Range made = shares.chunks_of(item, owner);
                uint8_t* parts = partials_.mine(worker) + cut_place(owner, made);
                tree.add_merged(made.first, made.stop, parts + query * bytes, item.num_queries * bytes);
            }
            finish_query(worker, block, *reinterpret_cast<const Partial*>(tree.finish()), item, query);
        }
    }
    return is_any_cut;
}

// Leave what a query attended to as the output projection reads it.
void Pass::finish_query(
    const Worker& worker, const Attention& block, const Partial& running, const AttendItem& item, int64_t query) const {
    const int heads_per_row = block.heads_per_kv();
    const int64_t row = item.first_row + query / heads_per_row;
    const int64_t head = item.kv_head * heads_per_row + query % heads_per_row;
    const int64_t first = (row * block.num_heads + head) * block.head_dim;
    if (!block.output.weight->is_quantised() || !has_whole_groups(block)) {
        k_.finish(running, block.head_dim, inner_values_ + first);
        return;
    }
    alignas(64) thread_local static Scratch scratch;
    float* attended = scratch.reserve<float>(block.head_dim);
    const int64_t group = first / kGroup, count = block.head_dim / kGroup;
    k_.finish(running, block.head_dim, attended);
    k_.quantise(attended, count, inner_groups_.mine(worker) + group);
    inner_groups_.publish(worker, group, count);
}

}  // namespace headlong
