// Attention in a pass: project heads, write keys and values, attend, gate, project.
#include <cmath>

#include "attend_run.hpp"

namespace headlong {

namespace {

// One head of queries, keys or values; its numbers begin at `first` in a projected row.
struct Head {
    bool is_query, is_key;
    int64_t index, first;
    int size;
};

// The heads of a block in the order in which workers share them: those of a kv head side by side. A row holds queries,
// keys and values one after the other; it has no queries where only keys and values are written, and only queries where
// another layer has written these.
struct Heads {
    int64_t num_queries, num_kv;
    int key_dim, value_dim;
    bool has_keys = true;

    int64_t count() const { return num_queries + (has_keys ? 2 * num_kv : 0); }
    int64_t row_size() const { return num_queries * key_dim + (has_keys ? num_kv * (key_dim + value_dim) : 0); }
    Head at(int64_t item) const {
        if (!has_keys) return {true, false, item, item * key_dim, key_dim};
        const int64_t queries_each = num_queries / num_kv;
        const int64_t kv = item / (queries_each + 2), query = item % (queries_each + 2);
        if (query < queries_each) {
            return {true, false, kv * queries_each + query, (kv * queries_each + query) * key_dim, key_dim};
        }
        if (query == queries_each) return {false, true, kv, (num_queries + kv) * key_dim, key_dim};
        return {false, false, kv, (num_queries + num_kv) * key_dim + kv * value_dim, value_dim};
    }
};

// The attention of one layer, as one worker computes it.
class AttentionRun final : AttendRun {
public:
    AttentionRun(const Pass& pass, Worker& worker, const Attention& block, const MixerStates& states)
        : AttendRun(pass, worker, block.shape(), states), block_(block) {}

    void run();
    void write_keys();

private:
    // Heads that are whole groups can be quantised one by one.
    bool has_whole_groups() const { return block_.value_dim % kGroup == 0; }
    ProjectionInput input() const {
        if (!block_.beside_norm) return {pass_.x(worker_), &block_.norm};
        return {pass_.x(worker_), &block_.norm, pass_.input.beside, &*block_.beside_norm};
    }

    void project_heads(const Activations& x, Heads heads);
    void rotate_and_store(const Head& head, float* projected, int64_t stride, Range own_rows) const;
    void finish_query(const Partial& running, int64_t row, int64_t head) const override;

    const Attention& block_;
};

void AttentionRun::write_keys() {
    const Activations prepared = pass_.prepare(worker_, input(), {&block_.key, &block_.value});
    project_heads(prepared, {0, block_.num_kv_heads, block_.head_dim, block_.value_dim});
}

void AttentionRun::run() {
    const bool has_keys = block_.writes_keys();
    const Activations prepared = has_keys
        ? pass_.prepare(worker_, input(), {&block_.query, &block_.key, &block_.value})
        : pass_.prepare(worker_, input(), {&block_.query});
    if (block_.gate) pass_.multiply(worker_, prepared, {&*block_.gate}, buffers_.gates, block_.attended_size());
    project_heads(prepared, {block_.num_heads, block_.num_kv_heads, block_.head_dim, block_.value_dim, has_keys});
    worker_.barrier();
    if (block_.adds_to_normed) pass_.normalise(worker_, block_.norm);  // attend() waits before it is added to
    attend();

    const int64_t size = block_.attended_size();
    if (block_.output.weight->is_quantised() && !has_whole_groups()) {
        pass_.quantise_inner(worker_, size);
        worker_.barrier();
    }
    pass_.add_result(worker_, pass_.inner(worker_, size), block_.output, block_.output_norm);
}

// Project, rotate and store the queries, keys and values of all rows. With few rows, a worker does whole heads: there
// is no barrier in between, and nothing moves to another core. Heads that share a kv head lie side by side, as they do
// when they attend. With many rows, workers share the products evenly, and then the rest.
void AttentionRun::project_heads(const Activations& x, Heads heads) {
    const int64_t stride = heads.row_size();
    if (pass_.is_short() && heads.key_dim % k_.tile_width == 0 && heads.value_dim % k_.tile_width == 0) {
        const Range own = worker_.share(heads.count());
        for (int64_t item = own.first; item < own.stop; ++item) {
            const Head head = heads.at(item);
            const int64_t tiles = head.size / k_.tile_width;
            const Linear& linear = head.is_query ? block_.query : head.is_key ? block_.key : block_.value;
            float* projected = buffers_.projected.mine(worker_);
            pass_.multiply_tiles(x, linear, {head.index * tiles, (head.index + 1) * tiles},
                                 projected + head.first, stride);
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
    const std::vector<Span>& spans = pass_.input.spans;
    int16_t shorts[kMostHeadDim];
    size_t s = 0;
    for (int64_t row = own_rows.first; row < own_rows.stop; ++row) {
        while (row >= spans[s].first_row + spans[s].num_rows) ++s;
        const int64_t position = spans[s].first_position + row - spans[s].first_row;
        float* numbers = projected + row * stride + head.first;
        const std::optional<Norm>& norm =
            head.is_query ? block_.query_norm : head.is_key ? block_.key_norm : block_.value_norm;
        if (norm) k_.rms_norm(numbers, norm->weight.data(), norm->eps, head.size, numbers);
        if (head.is_query || head.is_key) {
            const int64_t turned = position + (head.is_query ? block_.ahead : 0);
            k_.rotate(numbers, block_.rope->cosines(turned), block_.rope->sines(turned), block_.rope->half());
        }
        if (head.is_query) {
            put_query(row, head.index, numbers, block_.scale);
            continue;
        }
        const float scale = k_.shorten(numbers, head.size, shorts);
        if (head.is_key) {
            cache(s).write_key(head.index, position, shorts, scale);
        } else {
            cache(s).write_value(head.index, position, shorts, scale);
        }
    }
}

// Leave what a query attended to as the output projection reads it. A sink joins the softmax here, after all chunks,
// so that neither chunks nor workers change its place in the sum.
void AttentionRun::finish_query(const Partial& running, int64_t row, int64_t head) const {
    const int64_t size = block_.value_dim, first = (row * block_.num_heads + head) * size;
    const bool is_quantised = block_.output.weight->is_quantised() && has_whole_groups();
    alignas(64) thread_local static Scratch scratch;
    float* attended = is_quantised ? scratch.reserve<float>(size) : buffers_.inner_values + first;
    k_.finish(running, size, attended);
    float share = block_.value_scale;
    if (!block_.sinks.empty()) {
        const double sink = std::exp(double{block_.sinks[head]} - running.largest);
        share = static_cast<float>(share * running.sum / (running.sum + sink));
    }
    if (share != 1.0f) {
        for (int64_t i = 0; i < size; ++i) attended[i] *= share;
    }
    if (block_.gate) k_.multiply_gate(attended, buffers_.gates + first, size);
    if (!is_quantised) return;
    const int64_t group = first / kGroup, count = size / kGroup;
    k_.quantise(attended, count, buffers_.inner_groups.mine(worker_) + group);
    buffers_.inner_groups.publish(worker_, group, count);
}

}  // namespace

ScratchNeeds Attention::needs(const std::vector<Span>& spans, const Kernels& kernels) const {
    ScratchNeeds needs = AttendRun::needs(shape(), spans, kernels);
    needs.include({.hidden = hidden_size(),
                   .inputs = query.inputs(),
                   .inner = attended_size(),
                   .projected = query_size() + key_size() + value_size(),
                   .gates = gate ? attended_size() : 0});
    return needs;
}

ScratchNeeds Attention::needs_of_keys() const {
    return {.hidden = hidden_size(), .inputs = key.inputs(), .projected = key_size() + value_size()};
}

void Attention::run(Pass& pass, Worker& worker, const MixerStates& states) const {
    AttentionRun(pass, worker, *this, states).run();
}

void Attention::write_keys(Pass& pass, Worker& worker, const MixerStates& states) const {
    AttentionRun(pass, worker, *this, states).write_keys();
}

}  // namespace headlong
