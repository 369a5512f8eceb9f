#include "attend_run.hpp"

#include <algorithm>

#include "merge_tree.hpp"

namespace headlong {

ScratchNeeds AttendRun::needs(const AttendShape& shape, const std::vector<Span>& spans, const Kernels& kernels) {
    const size_t bytes = Partial::bytes(KVLayer::padded(shape.value_dim, kernels.width));
    size_t most = 0;  // bytes that a worker's part of one item can take
    for (const Span& span : spans) {
        const int64_t num_queries = AttendShares::rows_each(span, shape.heads_per_kv()) * shape.heads_per_kv();
        const int64_t num_chunks = ceil_div(span.first_position + span.num_rows, kChunk);
        // uint64_t and size_t are two types on macOS.
        most = std::max<size_t>(most, most_waiting(num_chunks) * num_queries * bytes);
    }
    return {.query_bytes = static_cast<int64_t>(shape.num_heads * Query::bytes(shape.key_dim)),
            .cut_bytes = static_cast<int64_t>(most)};
}

void AttendRun::put_query(int64_t row, int64_t head, const float* numbers, float scale) const {
    const int64_t heads_each = shape_.heads_per_kv();
    const int64_t place = (first_query(head / heads_each, row) + head % heads_each) * query_bytes_;
    Query& query = *reinterpret_cast<Query*>(buffers_.queries.mine(worker_) + place);
    query.scale = scale * k_.shorten(numbers, shape_.key_dim, query.values());
    buffers_.queries.publish(worker_, place, query_bytes_);
}

void AttendRun::attend() const {
    thread_local static AttendShares shares;
    shares.share_out(pass_.input.spans, shape_, worker_.count);
    attend_own(shares);
    worker_.barrier();
    if (merge_cuts(shares)) worker_.barrier();
}

// The attention of an item over one chunk.
AttendTask AttendRun::make_task(const AttendItem& item, int64_t chunk) const {
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
        .heads_per_row = shape_.heads_per_kv(),
        .key_dim = shape_.key_dim,
        .padded_dim = padded_dim_,
        .first_position = span.first_position + item.first_row - span.first_row - start,
        .window = shape_.window,
        .chunk = kChunk,
        .partials = nullptr,
        .partial_bytes = partial_bytes_,
    };
}

// Publish to every worker the queries that it is going to merge.
void AttendRun::publish_cut(const AttendItem& item, int64_t place, size_t num_runs) const {
    for (int reader = 0; reader < worker_.count; ++reader) {
        const Range queries = worker_.share_of(reader, item.num_queries);
        for (size_t run = 0; run < num_runs; ++run) {
            const int64_t first = place + (run * item.num_queries + queries.first) * partial_bytes_;
            buffers_.partials.publish_to(reader, worker_, first, (queries.stop - queries.first) * partial_bytes_);
        }
    }
}

void AttendRun::attend_own(const AttendShares& shares) const {
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
void AttendRun::attend_item(const AttendItem& item, Range own, const int16_t* next_keys) const {
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
        finish(results + query * partial_bytes_, item, query);
    }
}

// Partials of some queries into those of the chunks left of theirs.
void AttendRun::merge_all(const uint8_t* right, int64_t num_queries, uint8_t* left) const {
    for (int64_t q = 0; q < num_queries; ++q, right += partial_bytes_, left += partial_bytes_) {
        k_.merge(*reinterpret_cast<const Partial*>(right), padded_dim_, *reinterpret_cast<Partial*>(left));
    }
}

// Merge what several workers made of an item, each taking some of its queries. Returns whether there was any.
bool AttendRun::merge_cuts(const AttendShares& shares) const {
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
            finish(tree.finish(), item, query);
        }
    }
    return is_any_cut;
}

// Hand over a query of an item; they stand in order of rows and heads.
void AttendRun::finish(const uint8_t* result, const AttendItem& item, int64_t query) const {
    const int heads_each = shape_.heads_per_kv();
    const int64_t row = item.first_row + query / heads_each, head = item.kv_head * heads_each + query % heads_each;
    finish_query(*reinterpret_cast<const Partial*>(result), row, head);
}

}  // namespace headlong
