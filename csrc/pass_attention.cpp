#include <algorithm>
#include <bit>
#include <cmath>

#include "merge_tree.hpp"
#include "pass.hpp"

namespace headlong {

namespace {
constexpr int64_t kMaxQueries = 24;  // rows × heads of one task; more would leave the first cache

// Heads that are whole groups can be quantised one by one.
bool has_whole_groups(const Attention& block) { return block.head_dim % kGroup == 0; }

int64_t rows_per_task(const Attention& block) {
    return std::max<int64_t>(1, kMaxQueries / (block.num_heads / block.num_kv_heads));
}
}  // namespace

bool Pass::is_split(const Span& span) const { return span.num_rows <= kSplitRows; }

Pass::Entry Pass::entry(const Attention& block) const {
    if (!block.beside_norm) return {input_.x, &block.norm};
    return {input_.x, &block.norm, input_.beside, &*block.beside_norm};
}

void Pass::remember(Member& me, const Attention& block, const std::vector<KVLayer*>& caches) {
    const Activations x = enter(me, entry(block), {&block.key, &block.value});
    project_heads(me, x, block, {0, block.num_kv_heads}, caches);
}

void Pass::attention(Member& me, const Attention& block, const std::vector<KVLayer*>& caches) {
    const Activations x = enter(me, entry(block), {&block.query, &block.key, &block.value});
    project_heads(me, x, block, {block.num_heads, block.num_kv_heads}, caches);
    me.barrier();
    attend_by_rows(me, block, caches);
    if (num_chunks_ > 0) {
        attend_by_chunks(me, block, caches);
        me.barrier();
        merge_chunks(me, block, *caches.front());
    }
    me.barrier();

    const int64_t size = block.query_size();
    if (block.output.weight->is_quantised() && !has_whole_groups(block)) {
        const Member::Range own = me.share(rows() * (size / kGroup));
        for (int64_t g = own.first; g < own.stop; ++g) {
            k_.quantise(inner_values_ + g * kGroup, 1, inner_groups_ + g);
        }
        me.barrier();
    }
    add_result(me, {inner_groups_, size_t(size / kGroup), inner_values_, size_t(size)}, block.output, block.output_norm);
}

// Project, turn and store the queries, keys and values of all rows. Few rows: a member does whole heads, so that
// nobody waits in between and nothing travels to another core; heads that share a kv head lie side by side, as
// they do when they attend. Many rows: all members share evenly first the products, then the rest.
void Pass::project_heads(
    Member& me, const Activations& x, const Attention& block, Heads heads, const std::vector<KVLayer*>& caches) const {
    const int64_t stride = heads.count() * block.head_dim;
    if (is_short() && block.head_dim % k_.tile_width == 0) {
        const Member::Range own = me.share(heads.count());
        const int64_t tiles = block.head_dim / k_.tile_width;
        for (int64_t item = own.first; item < own.stop; ++item) {
            const Head head = heads.at(item);
            const Linear& linear = head.is_query ? block.query : head.is_key ? block.key : block.value;
            multiply_tiles(x, linear, head.index * tiles, (head.index + 1) * tiles,
                           projected_ + head.place * block.head_dim, stride);
            turn_and_store(block, head, stride, {0, rows()}, caches);
        }
        return;
    }
    if (heads.num_queries > 0) {
        multiply(me, x, {&block.query, &block.key, &block.value}, projected_, stride);
    } else {
        multiply(me, x, {&block.key, &block.value}, projected_, stride);
    }
    me.barrier();
    const Member::Range own_rows = me.share(rows());
    for (int64_t item = 0; item < heads.count(); ++item) {
        turn_and_store(block, heads.at(item), stride, own_rows, caches);
    }
}

// Norm and turn a head of queries or keys, round it, and write keys and values to the caches.
void Pass::turn_and_store(
    const Attention& block, const Head& head, int64_t stride, Member::Range own_rows,
    const std::vector<KVLayer*>& caches) const {
    const int dim = block.head_dim;
    int16_t shorts[4096];
    size_t s = 0;
    for (int64_t row = own_rows.first; row < own_rows.stop; ++row) {
        while (row >= input_.spans[s].first_row + input_.spans[s].num_rows) ++s;
        const Span& span = input_.spans[s];
        const int64_t position = span.first_position + row - span.first_row;
        float* numbers = projected_ + row * stride + head.place * dim;
        if (head.is_query || head.is_key) {
            const std::optional<Norm>& norm = head.is_query ? block.query_norm : block.key_norm;
            if (norm) k_.rms_norm(numbers, norm->weight.data(), norm->eps, dim, numbers);
            k_.rotate(numbers, block.rope->cosines(position), block.rope->sines(position), dim / 2);
        }
        if (head.is_query) {
            const int64_t place = row * block.num_heads + head.index;
            query_scales_[place] = block.scale * k_.shorten(numbers, dim, queries_ + place * dim);
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

AttendTask Pass::make_task(
    const Attention& block, const KVLayer& cache, const Span& span, int kv_head, int64_t first_row,
    int64_t num_rows, int64_t chunk) const {
    const int heads_per_row = block.num_heads / block.num_kv_heads;
    const int64_t start = chunk * kChunk, first_query = first_row * block.num_heads + kv_head * heads_per_row;
    return AttendTask{
        .keys = cache.key_block(kv_head, start),
        .values = cache.value_pairs(kv_head, start),
        .key_scales = cache.key_scales(kv_head, start),
        .value_scales = cache.value_scales(kv_head, start),
        .next_keys = cache.key_block(kv_head, start + kChunk),
        .queries = queries_ + first_query * block.head_dim,
        .query_scales = query_scales_ + first_query,
        .heads_apart = block.num_heads,
        .num_rows = static_cast<int>(num_rows),
        .heads_per_row = heads_per_row,
        .head_dim = block.head_dim,
        .padded_dim = cache.padded_dim,
        .first_position = span.first_position + first_row - span.first_row - start,
        .window = block.window,
        .chunk = kChunk,
        .partials = nullptr,
        .partial_bytes = Partial::bytes(cache.padded_dim),
    };
}

uint8_t* Pass::partial(const Attention& block, const KVLayer& shape, int64_t row, int kv_head, int64_t chunk) const {
    const int64_t heads_per_row = block.num_heads / block.num_kv_heads;
    const int64_t index = ((chunk * block.num_kv_heads + kv_head) * rows() + row) * heads_per_row;
    return partials_ + index * Partial::bytes(shape.padded_dim);
}

// The chunks of a span and kv head that a member takes.
Member::Range Pass::chunks_of(
    const Member& me, int member, const Attention& block, const Span& span, int kv_head) const {
    const Member::Range units = me.share_of(member, num_chunks_ * block.num_kv_heads);
    const int64_t first = kv_head * num_chunks_, seen = chunks_seen(span);
    return {std::max<int64_t>(units.first - first, 0), std::min({units.stop - first, num_chunks_, seen})};
}

void Pass::attend_by_chunks(Member& me, const Attention& block, const std::vector<KVLayer*>& caches) const {
    for (int kv_head = 0; kv_head < block.num_kv_heads; ++kv_head) {
        for (size_t s = 0; s < caches.size(); ++s) {
            const Span& span = input_.spans[s];
            if (!is_split(span)) continue;
            const auto slot = [&](int64_t chunk) { return partial(block, *caches[s], span.first_row, kv_head, chunk); };
            const int64_t num_queries = span.num_rows * (block.num_heads / block.num_kv_heads);
            MergeTree tree([&](int64_t right, int64_t left, size_t) {
                merge_all(slot(right), *caches[s], num_queries, slot(left));
            });
            const Member::Range own = chunks_of(me, me.index, block, span, kv_head);
            for (int64_t chunk = own.first; chunk < own.stop; ++chunk) {
                AttendTask task = make_task(block, *caches[s], span, kv_head, span.first_row, span.num_rows, chunk);
                task.partials = slot(chunk);
                k_.attend(task);
                tree.add({chunk, 1});
            }
        }
    }
}

// Partials of some queries into those of the chunks left of theirs.
void Pass::merge_all(const uint8_t* right, const KVLayer& shape, int64_t num_queries, uint8_t* left) const {
    const size_t bytes = Partial::bytes(shape.padded_dim);
    for (int64_t q = 0; q < num_queries; ++q, right += bytes, left += bytes) {
        k_.merge(*reinterpret_cast<const Partial*>(right), shape.padded_dim, *reinterpret_cast<Partial*>(left));
    }
}

void Pass::merge_chunks(Member& me, const Attention& block, const KVLayer& shape) const {
    const int heads_per_row = block.num_heads / block.num_kv_heads;
    const size_t bytes = Partial::bytes(shape.padded_dim);
    // Head by head, as the chunks were shared out: most of what a member merges it made itself.
    const Member::Range own = me.share(rows() * block.num_heads);
    size_t s = 0;
    for (int64_t item = own.first; item < own.stop; ++item) {
        const int64_t row = item % rows();
        const int head = static_cast<int>(item / rows()), kv_head = head / heads_per_row;
        if (row == 0) s = 0;
        while (row >= input_.spans[s].first_row + input_.spans[s].num_rows) ++s;
        const Span& span = input_.spans[s];
        if (!is_split(span)) continue;
        const auto slot = [&](int64_t chunk) {
            return partial(block, shape, row, kv_head, chunk) + head % heads_per_row * bytes;
        };
        MergeTree tree([&](int64_t right, int64_t left, size_t) { merge_all(slot(right), shape, 1, slot(left)); });
        for (int member = 0; member < me.count; ++member) {
            const Member::Range made = chunks_of(me, member, block, span, kv_head);
            tree.add_merged(made.first, made.stop);
        }
        tree.finish();
        finish_head(block, *reinterpret_cast<Partial*>(slot(0)), row, head);
    }
}

// Leave what a head attended to as the output projection reads it.
void Pass::finish_head(const Attention& block, const Partial& running, int64_t row, int head) const {
    const int64_t first = (row * block.num_heads + head) * block.head_dim;
    k_.finish(running, block.head_dim, inner_values_ + first);
    if (block.output.weight->is_quantised() && has_whole_groups(block)) {
        k_.quantise(inner_values_ + first, block.head_dim / kGroup, inner_groups_ + first / kGroup);
    }
}

// Long spans: a task takes a few rows through all their chunks, merging as it goes.
void Pass::attend_by_rows(Member& me, const Attention& block, const std::vector<KVLayer*>& caches) const {
    const int heads_per_row = block.num_heads / block.num_kv_heads;
    const int64_t rows_each = rows_per_task(block);
    alignas(64) thread_local static Scratch scratch;
    for (size_t s = 0; s < caches.size(); ++s) {
        const Span& span = input_.spans[s];
        if (is_split(span)) continue;
        const KVLayer& cache = *caches[s];
        const size_t bytes = Partial::bytes(cache.padded_dim), per_task = rows_each * heads_per_row * bytes;
        const int64_t num_chunks = chunks_seen(span);
        uint8_t* parts = scratch.room<uint8_t>((std::bit_width(uint64_t(num_chunks)) + 1) * per_task);
        const int64_t num_blocks = ceil_div(span.num_rows, rows_each);
        // Later rows see more; taking every second task keeps the shares even.
        for (int64_t unit = me.index; unit < num_blocks * block.num_kv_heads; unit += me.count) {
            const int64_t first_row = span.first_row + unit / block.num_kv_heads * rows_each;
            const int64_t num_rows = std::min(rows_each, span.first_row + span.num_rows - first_row);
            const int kv_head = static_cast<int>(unit % block.num_kv_heads);
            const int64_t last = span.first_position + first_row - span.first_row + num_rows - 1;
            MergeTree tree([&](int64_t, int64_t, size_t place) {
                merge_all(parts + (place + 1) * per_task, cache, num_rows * heads_per_row, parts + place * per_task);
            });
            for (int64_t chunk = 0; chunk <= last / kChunk; ++chunk) {
                AttendTask task = make_task(block, cache, span, kv_head, first_row, num_rows, chunk);
                task.partials = parts + tree.num_waiting() * per_task;
                k_.attend(task);
                tree.add({chunk, 1});
            }
            tree.finish();
            for (int q = 0; q < num_rows * heads_per_row; ++q) {
                const int64_t row = first_row + q / heads_per_row;
                const int head = kv_head * heads_per_row + q % heads_per_row;
                finish_head(block, *reinterpret_cast<Partial*>(parts + q * bytes), row, head);
            }
        }
    }
}

}  // namespace headlong
