// Attention in a pass: project heads, write keys and values, attend chunk by chunk, merge, project.
#include <algorithm>
#include <cmath>

#include "attend_shares.hpp"
#include "merge_tree.hpp"
#include "pass.hpp"

namespace headlong {

namespace {

// One head of queries, keys or values; `place` is where it stands among all heads of a projected row.
struct Head { bool is_query, is_key; int64_t index, place; };

// The heads of a block in the order in which workers share them: those of a kv head side by side. A row holds queries,
// keys and values one after the other; it has no queries where only keys and values are written, and only queries where
// another layer has written these.
struct Heads {
    int64_t num_queries, num_kv;
    bool has_keys = true;

    int64_t count() const { return num_queries + (has_keys ? 2 * num_kv : 0); }
    Head at(int64_t item) const {
        if (!has_keys) return {true, false, item, item};
        const int64_t queries_each = num_queries / num_kv;
        const int64_t kv = item / (queries_each + 2), query = item % (queries_each + 2);
        if (query < queries_each) return {true, false, kv * queries_each + query, kv * queries_each + query};
        const bool is_key = query == queries_each;
        return {false, is_key, kv, num_queries + (is_key ? 0 : num_kv) + kv};
    }
};

// The attention of one layer, as one worker computes it.
class AttentionRun {
public:
    AttentionRun(const Pass& pass, Worker& worker, const Attention& block, const MixerStates& states)
        : pass_(pass), k_(pass.kernels), buffers_(pass.buffers), worker_(worker), block_(block), states_(states),
          padded_dim_(KVLayer::padded(block.head_dim, pass.kernels.width)),
          query_bytes_(Query::bytes(block.head_dim)), partial_bytes_(Partial::bytes(padded_dim_)) {}

    void run();
    void write_keys();

private:
    KVLayer& cache(size_t span) const { return static_cast<KVLayer&>(*states_[span]); }
    // Heads that are whole groups can be quantised one by one.
    bool has_whole_groups() const { return block_.head_dim % kGroup == 0; }
    ProjectionInput input() const {
        if (!block_.beside_norm) return {pass_.x(worker_), &block_.norm};
        return {pass_.x(worker_), &block_.norm, pass_.input.beside, &*block_.beside_norm};
    }
    // The first of a row's queries with one kv head: those of a kv head stand side by side, in order of rows.
    int64_t first_query(int64_t kv_head, int64_t row) const {
        return (kv_head * pass_.rows() + row) * block_.heads_per_kv();
    }
    // Where a worker leaves its part of an item that it shares with others. It has two such items at most: one that its
    // share begins in the middle of, and one that its share ends in the middle of.
    int64_t cut_place(int worker, Range chunks) const {
        const int64_t bytes = buffers_.bytes_per_cut;
        return worker * page_apart<uint8_t>(2 * bytes) + (chunks.first > 0 ? 0 : bytes);
    }

    void project_heads(const Activations& x, Heads heads);
    void rotate_and_store(const Head& head, float* projected, int64_t stride, Range own_rows) const;
    void attend(const AttendShares& shares) const;
    void attend_item(const AttendItem& item, Range own, const int16_t* next_keys) const;
    AttendTask make_task(const AttendItem& item, int64_t chunk) const;
    void publish_cut(const AttendItem& item, int64_t place, size_t num_runs) const;
    void merge_all(const uint8_t* right, int64_t num_queries, uint8_t* left) const;
    bool merge_cuts(const AttendShares& shares) const;
    void finish_query(const Partial& running, const AttendItem& item, int64_t query) const;

    const Pass& pass_;
    const Kernels& k_;
    const PassBuffers& buffers_;
    Worker& worker_;
    const Attention& block_;
    const MixerStates& states_;
    const int padded_dim_;
    const size_t query_bytes_, partial_bytes_;
};

void AttentionRun::write_keys() {
    const Activations prepared = pass_.prepare(worker_, input(), {&block_.key, &block_.value});
    project_heads(prepared, {0, block_.num_kv_heads});
}

void AttentionRun::run() {
    const bool has_keys = block_.writes_keys();
    const Activations prepared = has_keys
        ? pass_.prepare(worker_, input(), {&block_.query, &block_.key, &block_.value})
        : pass_.prepare(worker_, input(), {&block_.query});
    if (block_.gate) pass_.multiply(worker_, prepared, {&*block_.gate}, buffers_.gates, block_.query_size());
    project_heads(prepared, {block_.num_heads, block_.num_kv_heads, has_keys});
    worker_.barrier();
    thread_local static AttendShares shares;
    shares.share_out(pass_.input.spans, block_, worker_.count);
    attend(shares);
    worker_.barrier();
    if (merge_cuts(shares)) worker_.barrier();

    const int64_t size = block_.query_size();
    if (block_.output.weight->is_quantised() && !has_whole_groups()) {
        const Range own = worker_.share(pass_.rows() * (size / kGroup));
        for (int64_t g = own.first; g < own.stop; ++g) {
            k_.quantise(buffers_.inner_values + g * kGroup, 1, buffers_.inner_groups.mine(worker_) + g);
            buffers_.inner_groups.publish(worker_, g, 1);
        }
        worker_.barrier();
    }
    pass_.add_result(worker_, pass_.inner(worker_, size), block_.output, block_.output_norm);
}

// Project, rotate and store the queries, keys and values of all rows. With few rows, a worker does whole heads: there
// is no barrier in between, and nothing moves to another core. Heads that share a kv head lie side by side, as they do
// when they attend. With many rows, workers share the products evenly, and then the rest.
void AttentionRun::project_heads(const Activations& x, Heads heads) {
    const int64_t stride = heads.count() * block_.head_dim;
    if (pass_.is_short() && block_.head_dim % k_.tile_width == 0) {
        const Range own = worker_.share(heads.count());
        const int64_t tiles = block_.head_dim / k_.tile_width;
        for (int64_t item = own.first; item < own.stop; ++item) {
            const Head head = heads.at(item);
            const Linear& linear = head.is_query ? block_.query : head.is_key ? block_.key : block_.value;
            float* projected = buffers_.projected.mine(worker_);
            pass_.multiply_tiles(x, linear, {head.index * tiles, (head.index + 1) * tiles},
                                 projected + head.place * block_.head_dim, stride);
            rotate_and_store(head, projected, stride, {0, pass_.rows()});
        }
        return;
    }
    float* projected = buffers_.projected.whole();
    if (!heads.has_keys) {
        pass_.multiply(worker_, x, {&block_.query}, projected, stride);
    } else if (heads.num_queries > 0) {
        pass_.multiply(worker_, x, {&block_.query, &block_.key, &block_.value}, projected, stride);
    } else {
        pass_.multiply(worker_, x, {&block_.key, &block_.value}, projected, stride);
    }
    worker_.barrier();
    const Range own_rows = worker_.share(pass_.rows());
    for (int64_t item = 0; item < heads.count(); ++item) {
        rotate_and_store(heads.at(item), projected, stride, own_rows);
    }
}

// Norm a head, rotate queries and keys, round it, and write keys and values to the caches.
void AttentionRun::rotate_and_store(const Head& head, float* projected, int64_t stride, Range own_rows) const {
    const int dim = block_.head_dim, heads_each = block_.heads_per_kv();
    const int64_t kv_head = head.is_query ? head.index / heads_each : head.index;
    const std::vector<Span>& spans = pass_.input.spans;
    int16_t shorts[kMostHeadDim];
    size_t s = 0;
    for (int64_t row = own_rows.first; row < own_rows.stop; ++row) {
        while (row >= spans[s].first_row + spans[s].num_rows) ++s;
        const int64_t position = spans[s].first_position + row - spans[s].first_row;
        float* numbers = projected + row * stride + head.place * dim;
        const std::optional<Norm>& norm =
            head.is_query ? block_.query_norm : head.is_key ? block_.key_norm : block_.value_norm;
        if (norm) k_.rms_norm(numbers, norm->weight.data(), norm->eps, dim, numbers);
        if (head.is_query || head.is_key) {
            const int64_t turned = position + (head.is_query ? block_.ahead : 0);
            k_.rotate(numbers, block_.rope->cosines(turned), block_.rope->sines(turned), block_.rope->half());
        }
        if (head.is_query) {
            const int64_t place = (first_query(kv_head, row) + head.index % heads_each) * query_bytes_;
            Query& query = *reinterpret_cast<Query*>(buffers_.queries.mine(worker_) + place);
            query.scale = block_.scale * k_.shorten(numbers, dim, query.values());
            buffers_.queries.publish(worker_, place, query_bytes_);
            continue;
        }
        const float scale = k_.shorten(numbers, dim, shorts);
        if (head.is_key) {
            cache(s).write_key(head.index, position, shorts, scale);
        } else {
            cache(s).write_value(head.index, position, shorts, scale);
        }
    }
}

// The attention of an item over one chunk.
AttendTask AttentionRun::make_task(const AttendItem& item, int64_t chunk) const {
    const int64_t start = chunk * kChunk;
    const Span& span = pass_.input.spans[item.span];
    const KVLayer& kv = cache(item.span);
    return AttendTask{
        .keys = kv.key_block(item.kv_head, start),
        .values = kv.value_pairs(item.kv_head, start),
        .key_scales = kv.key_scales(item.kv_head, start),
        .value_scales = kv.value_scales(item.kv_head, start),
        .next_keys = kv.key_block(item.kv_head, start + kChunk),
        .queries = buffers_.queries.mine(worker_) + first_query(item.kv_head, item.first_row) * query_bytes_,
        .query_bytes = query_bytes_,
        .num_rows = static_cast<int>(item.num_rows),
        .heads_per_row = block_.heads_per_kv(),
        .head_dim = block_.head_dim,
        .padded_dim = padded_dim_,
        .first_position = span.first_position + item.first_row - span.first_row - start,
        .window = block_.window,
        .chunk = kChunk,
        .partials = nullptr,
        .partial_bytes = partial_bytes_,
    };
}

// Publish to every worker the queries that it is going to merge.
void AttentionRun::publish_cut(const AttendItem& item, int64_t place, size_t num_runs) const {
    for (int reader = 0; reader < worker_.count; ++reader) {
        const Range queries = worker_.share_of(reader, item.num_queries);
        for (size_t run = 0; run < num_runs; ++run) {
            const int64_t first = place + (run * item.num_queries + queries.first) * partial_bytes_;
            buffers_.partials.publish_to(reader, worker_, first, (queries.stop - queries.first) * partial_bytes_);
        }
    }
}

void AttentionRun::attend(const AttendShares& shares) const {
    const std::vector<AttendItem>& items = shares.items();
    for (size_t i = 0; i < items.size(); ++i) {
        const Range own = shares.chunks_of(items[i], worker_.index);
        if (own.first >= own.stop) continue;
        const bool is_last = i + 1 == items.size();
        const int16_t* next_keys = is_last ? nullptr : cache(items[i + 1].span).key_block(items[i + 1].kv_head, 0);
        attend_item(items[i], own, next_keys);
    }
}

// Take an item through its chunks, or those of them that are this worker's, merging as it goes.
void AttentionRun::attend_item(const AttendItem& item, Range own, const int16_t* next_keys) const {
    alignas(64) thread_local static Scratch scratch;
    const bool is_whole = own.stop - own.first == item.num_chunks;
    const size_t per_run = item.num_queries * partial_bytes_;
    const int64_t place = cut_place(worker_.index, own);
    uint8_t* parts = is_whole ? scratch.reserve<uint8_t>(most_waiting(item.num_chunks) * per_run)
                              : buffers_.partials.mine(worker_) + place;
    MergeTree tree([&](const uint8_t* right, uint8_t* left) { merge_all(right, item.num_queries, left); });
    for (int64_t chunk = own.first; chunk < own.stop; ++chunk) {
        AttendTask task = make_task(item, chunk);
        if (chunk + 1 == own.stop && next_keys != nullptr) task.next_keys = next_keys;
        task.partials = parts + tree.num_waiting() * per_run;
        k_.attend(task);
        tree.add({chunk, 1, task.partials});
    }
    if (!is_whole) return publish_cut(item, place, tree.num_waiting());
    const uint8_t* results = tree.finish();
    for (int64_t query = 0; query < item.num_queries; ++query) {
        finish_query(*reinterpret_cast<const Partial*>(results + query * partial_bytes_), item, query);
    }
}

// Partials of some queries into those of the chunks left of theirs.
void AttentionRun::merge_all(const uint8_t* right, int64_t num_queries, uint8_t* left) const {
    for (int64_t q = 0; q < num_queries; ++q, right += partial_bytes_, left += partial_bytes_) {
        k_.merge(*reinterpret_cast<const Partial*>(right), padded_dim_, *reinterpret_cast<Partial*>(left));
    }
}

// Merge what several workers made of an item, each taking some of its queries. Returns whether there was any.
bool AttentionRun::merge_cuts(const AttendShares& shares) const {
    bool is_any_cut = false;
    for (const AttendItem& item : shares.items()) {
        if (!shares.is_cut(item)) continue;
        is_any_cut = true;
        const Range own = worker_.share(item.num_queries);
        for (int64_t query = own.first; query < own.stop; ++query) {
            MergeTree tree([&](const uint8_t* right, uint8_t* left) { merge_all(right, 1, left); });
            for (int maker = 0; maker < worker_.count; ++maker) {
                const Range made = shares.chunks_of(item, maker);
                uint8_t* parts = buffers_.partials.mine(worker_) + cut_place(maker, made);
                tree.add_merged(made.first, made.stop, parts + query * partial_bytes_,
                                item.num_queries * partial_bytes_);
            }
            finish_query(*reinterpret_cast<const Partial*>(tree.finish()), item, query);
        }
    }
    return is_any_cut;
}

// Leave what a query attended to as the output projection reads it.
void AttentionRun::finish_query(const Partial& running, const AttendItem& item, int64_t query) const {
    const int heads_per_row = block_.heads_per_kv();
    const int64_t row = item.first_row + query / heads_per_row;
    const int64_t head = item.kv_head * heads_per_row + query % heads_per_row;
    const int64_t first = (row * block_.num_heads + head) * block_.head_dim;
    const bool is_quantised = block_.output.weight->is_quantised() && has_whole_groups();
    alignas(64) thread_local static Scratch scratch;
    float* attended = is_quantised ? scratch.reserve<float>(block_.head_dim) : buffers_.inner_values + first;
    k_.finish(running, block_.head_dim, attended);
    if (block_.gate) k_.multiply_gate(attended, buffers_.gates + first, block_.head_dim);
    if (!is_quantised) return;
    const int64_t group = first / kGroup, count = block_.head_dim / kGroup;
    k_.quantise(attended, count, buffers_.inner_groups.mine(worker_) + group);
    buffers_.inner_groups.publish(worker_, group, count);
}

}  // namespace

ScratchNeeds Attention::needs(const std::vector<Span>& spans, const Kernels& kernels) const {
    const size_t bytes = Partial::bytes(KVLayer::padded(head_dim, kernels.width));
    size_t most = 0;  // bytes that a worker's part of one item can take
    for (const Span& span : spans) {
        const int64_t num_queries = AttendShares::rows_each(span, heads_per_kv()) * heads_per_kv();
        const int64_t num_chunks = ceil_div(span.first_position + span.num_rows, kChunk);
        most = std::max(most, most_waiting(num_chunks) * num_queries * bytes);
    }
    return {.hidden = hidden_size(),
            .inputs = query.inputs(),
            .inner = query_size(),
            .projected = query_size() + 2 * key_size(),
            .gates = gate ? query_size() : 0,
            .query_bytes = static_cast<int64_t>(num_heads * Query::bytes(head_dim)),
            .cut_bytes = static_cast<int64_t>(most)};
}

ScratchNeeds Attention::needs_of_keys() const {
    return {.hidden = hidden_size(), .inputs = key.inputs(), .projected = 2 * key_size()};
}

void Attention::run(Pass& pass, Worker& worker, const MixerStates& states) const {
    AttentionRun(pass, worker, *this, states).run();
}

void Attention::write_keys(Pass& pass, Worker& worker, const MixerStates& states) const {
    AttentionRun(pass, worker, *this, states).write_keys();
}

}  // namespace headlong
