// Latent attention in a pass: latent vectors into the cache, queries turned into their space, attend, values, project.
//
// What heads share is computed row by row. Then a worker takes whole heads, for all rows: the products with a head's
// own matrices, first of its queries, and after attention of what it read.
#include <algorithm>
#include <cstring>

#include "attend_run.hpp"
#include "latent_attention.hpp"

namespace headlong {

namespace {

constexpr int64_t kGroupFloats = sizeof(ActGroup) / sizeof(float);

class LatentRun final : AttendRun {
public:
    LatentRun(const Pass& pass, Worker& worker, const LatentAttention& block, const MixerStates& states)
        : AttendRun(pass, worker, block.shape(), states), block_(block),
          rank_(block.rank()), kept_dim_(block.rank() + block.rotary_dim()),
          query_stride_(int64_t{block.num_heads} * block.query_dim()),
          kept_(buffers_.projected.whole()), queries_(kept_ + pass.rows() * kept_dim_),
          low_(queries_ + pass.rows() * query_stride_) {}

    void run();
    void write_keys();

    // Numbers per row of a head's product: its inputs in groups, then its outputs with what tiles hold beside them.
    static int64_t unit_size(const LatentAttention& block, const Kernels& kernels) {
        const int64_t widest = std::max({block.rank(), block.plain_dim, block.value_dim});
        return ceil_div(widest, kGroup) * kGroupFloats + widest + block.rotary_dim() + 2 * kernels.tile_width;
    }

private:
    // A head's product for all rows: row r begins at numbers + r * stride.
    struct Product { float* numbers; int64_t stride; };

    void project();
    void keep_latents(Range rows) const;
    void ask(int64_t head) const;
    void raise_values(int64_t head) const;
    Product multiply_head(const Linear& linear, int64_t head, const float* inputs, int64_t stride) const;
    void finish_query(const Partial& running, int64_t row, int64_t head) const override {
        k_.finish(running, rank_, read(row, head));
    }

    float* read(int64_t row, int64_t head) const {
        return buffers_.gates + (row * block_.num_heads + head) * rank_;
    }
    // The values of a head can be quantised on their own where they are whole groups.
    bool has_whole_groups() const { return block_.value_dim % kGroup == 0; }

    const LatentAttention& block_;
    const int64_t rank_, kept_dim_, query_stride_;
    float* const kept_;     // (rows, latent vector and the turning part of the key)
    float* const queries_;  // (rows, heads)
    float* const low_;      // (rows, what queries are made of)
};

void LatentRun::run() {
    project();
    keep_latents(worker_.share(pass_.rows()));
    const Range own = worker_.share(block_.num_heads);
    for (int64_t head = own.first; head < own.stop; ++head) ask(head);
    worker_.barrier();
    attend();
    for (int64_t head = own.first; head < own.stop; ++head) raise_values(head);
    worker_.barrier();
    const int64_t size = block_.output.inputs();
    if (block_.output.weight->is_quantised() && !has_whole_groups()) {
        pass_.quantise_inner(worker_, size);
        worker_.barrier();
    }
    pass_.add_result(worker_, pass_.inner(worker_, size), block_.output, std::nullopt);
}

void LatentRun::write_keys() {
    const Activations prepared = pass_.prepare(worker_, {pass_.x(worker_), &block_.norm}, {&block_.latent});
    pass_.multiply(worker_, prepared, {&block_.latent}, kept_, kept_dim_);
    worker_.barrier();
    keep_latents(worker_.share(pass_.rows()));
}

// Project all rows to queries and to what is kept of them, and return when all are there.
void LatentRun::project() {
    const ProjectionInput rows{pass_.x(worker_), &block_.norm};
    const Linear& first = block_.query_down ? *block_.query_down : block_.query;
    const Activations prepared = pass_.prepare(worker_, rows, {&first, &block_.latent});
    pass_.multiply(worker_, prepared, {&block_.latent}, kept_, kept_dim_);
    pass_.multiply(worker_, prepared, {&first}, block_.query_down ? low_ : queries_, first.outputs());
    worker_.barrier();
    if (!block_.query_down) return;
    const Activations low = pass_.prepare(worker_, {low_, &*block_.query_norm}, {&block_.query});
    pass_.multiply(worker_, low, {&block_.query}, queries_, query_stride_);
    worker_.barrier();
}

// Norm and rotate what is kept of rows, and write it to the caches.
void LatentRun::keep_latents(Range rows) const {
    const std::vector<Span>& spans = pass_.input.spans;
    int16_t shorts[kMostHeadDim];
    size_t s = 0;
    for (int64_t row = rows.first; row < rows.stop; ++row) {
        while (row >= spans[s].first_row + spans[s].num_rows) ++s;
        const int64_t position = spans[s].first_position + row - spans[s].first_row;
        float* numbers = kept_ + row * kept_dim_;
        k_.rms_norm(numbers, block_.latent_norm.weight.data(), block_.latent_norm.eps, rank_, numbers);
        const Rope& rope = *block_.rope;
        k_.rotate(numbers + rank_, rope.cosines(position), rope.sines(position), rope.half());
        cache(s).write_value(0, position, shorts, k_.shorten(numbers, rank_, shorts));
        cache(s).write_key(0, position, shorts, k_.shorten(numbers, kept_dim_, shorts));
    }
}

// The queries of a head, in the space of the keys.
void LatentRun::ask(int64_t head) const {
    float* queries = queries_ + head * block_.query_dim();
    const Product asked = multiply_head(block_.key_up, head, queries, query_stride_);
    for (const Span& span : pass_.input.spans) {
        for (int64_t offset = 0; offset < span.num_rows; ++offset) {
            const int64_t row = span.first_row + offset, position = span.first_position + offset;
            float* turning = queries + row * query_stride_ + block_.plain_dim;
            const Rope& rope = *block_.rope;
            k_.rotate(turning, rope.cosines(position), rope.sines(position), rope.half());
            float* numbers = asked.numbers + row * asked.stride;
            std::memcpy(numbers + rank_, turning, block_.rotary_dim() * sizeof(float));
            put_query(row, head, numbers, block_.scale);
        }
    }
}

// The values that a head makes of what it read, as the output projection reads them.
void LatentRun::raise_values(int64_t head) const {
    const Product raised = multiply_head(block_.value_up, head, read(0, head), block_.num_heads * rank_);
    const bool is_quantised = block_.output.weight->is_quantised() && has_whole_groups();
    for (int64_t row = 0; row < pass_.rows(); ++row) {
        const float* numbers = raised.numbers + row * raised.stride;
        const int64_t first = (row * block_.num_heads + head) * block_.value_dim;
        if (!is_quantised) {
            std::memcpy(buffers_.inner_values + first, numbers, block_.value_dim * sizeof(float));
            continue;
        }
        const int64_t group = first / kGroup, count = block_.value_dim / kGroup;
        k_.quantise(numbers, count, buffers_.inner_groups.mine(worker_) + group);
        buffers_.inner_groups.publish(worker_, group, count);
    }
}

// The matrices of all heads lie under one another, so a head's may begin and end inside a tile; what the tile
// computes of other heads' outputs is not read.
LatentRun::Product LatentRun::multiply_head(
    const Linear& linear, int64_t head, const float* inputs, int64_t stride) const {
    const int64_t outputs = linear.outputs() / block_.num_heads, width = linear.weight->width;
    const int64_t first = head * outputs, first_tile = first / width, stop_tile = ceil_div(first + outputs, width);
    const int64_t num_groups = linear.weight->is_quantised() ? linear.inputs() / kGroup : 0;
    auto* groups = reinterpret_cast<ActGroup*>(buffers_.units.mine(worker_));
    for (int64_t row = 0; row < pass_.rows() && num_groups > 0; ++row) {
        k_.quantise(inputs + row * stride, num_groups, groups + row * num_groups);
    }
    float* numbers = buffers_.units.mine(worker_) + pass_.rows() * num_groups * kGroupFloats;
    const int64_t row_size = (stop_tile - first_tile) * width + block_.rotary_dim();
    const Activations prepared{groups, size_t(num_groups), inputs, size_t(stride)};
    pass_.multiply_tiles(prepared, linear, {first_tile, stop_tile}, numbers, row_size);
    return {numbers + first - first_tile * width, row_size};
}

}  // namespace

ScratchNeeds LatentAttention::needs(const std::vector<Span>& spans, const Kernels& kernels) const {
    ScratchNeeds needs = AttendRun::needs(shape(), spans, kernels);
    const int64_t low = query_down ? query_down->outputs() : 0;
    needs.include({.hidden = hidden_size(),
                   .inputs = std::max(hidden_size(), low),
                   .inner = output.inputs(),
                   .projected = rank() + rotary_dim() + query.outputs() + low,
                   .gates = int64_t{num_heads} * rank(),
                   .unit = LatentRun::unit_size(*this, kernels)});
    return needs;
}

ScratchNeeds LatentAttention::needs_of_keys() const {
    return {.hidden = hidden_size(), .inputs = latent.inputs(), .projected = latent.outputs()};
}

void LatentAttention::write_keys(Pass& pass, Worker& worker, const MixerStates& states) const {
    LatentRun(pass, worker, *this, states).write_keys();
}

void LatentAttention::run(Pass& pass, Worker& worker, const MixerStates& states) const {
    LatentRun(pass, worker, *this, states).run();
}

}  // namespace headlong
