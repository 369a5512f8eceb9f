// The gated delta net in a pass: project, convolve, update and read the matrices, norm and gate, project.
//
// A worker takes whole key heads of a sequence, with the value heads that share them. It computes their queries, keys
// and values for all rows, and then takes the rows through the matrices in order, block of columns by block.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "delta_net.hpp"
#include "pass.hpp"

namespace headlong {

namespace {

constexpr float kUnitEps = 1e-6f;  // added to the squared length of queries and keys

class DeltaRun {
public:
    DeltaRun(const Pass& pass, Worker& worker, const GatedDeltaNet& block, const MixerStates& states)
        : pass_(pass), k_(pass.kernels), buffers_(pass.buffers), worker_(worker), block_(block), shape_(block.shape),
          states_(states), stride_(shape_.num_channels() + block.value_size() + 2 * shape_.num_value_heads),
          padded_dim_(shape_.padded_dim()) {}

    void run();

    // Numbers per row that a worker computes for one key head: query, key, values, factors, and what is read.
    static int64_t unit_size(const DeltaShape& shape) {
        return 2 * shape.key_dim + shape.heads_each() * (2 * shape.padded_dim() + 2);
    }

private:
    // Where the numbers of a row begin in a worker's scratch.
    int64_t key_at() const { return shape_.key_dim; }
    int64_t values_at() const { return 2 * shape_.key_dim; }
    int64_t read_at() const { return values_at() + shape_.heads_each() * padded_dim_; }
    int64_t decays_at() const { return read_at() + shape_.heads_each() * padded_dim_; }
    int64_t betas_at() const { return decays_at() + shape_.heads_each(); }

    DeltaState& state(size_t span) const { return static_cast<DeltaState&>(*states_[span]); }
    float* projected(int64_t row) const { return buffers_.projected.whole() + row * stride_; }
    float* unit(int64_t offset) const { return buffers_.units.mine(worker_) + offset * unit_size(shape_); }
    bool has_whole_groups() const { return shape_.value_dim % kGroup == 0; }

    void run_head(size_t span, int64_t key_head) const;
    const float* input_row(size_t span, int64_t offset) const;
    void convolve(size_t span, int64_t offset, int64_t channel, int64_t size, float* out) const;
    void compute_row(size_t span, int64_t offset, int64_t key_head) const;
    void update_blocks(size_t span, int64_t key_head, int64_t local) const;
    DeltaTask kept_rows(size_t span, Range rows, int64_t key_head, int64_t value_head, int64_t block) const;
    DeltaTask new_rows(Range rows, int64_t local, int64_t block) const;
    void finish_row(int64_t row, int64_t offset, int64_t local, int64_t value_head) const;
    void keep_rows(size_t span, int64_t key_head) const;
    void keep_window(size_t span, int64_t num_rows, const DeltaState::Copy& copy, Range channels) const;

    const Pass& pass_;
    const Kernels& k_;
    const PassBuffers& buffers_;
    Worker& worker_;
    const GatedDeltaNet& block_;
    const DeltaShape& shape_;
    const MixerStates& states_;
    const int64_t stride_;  // of projected rows
    const int64_t padded_dim_;
};

void DeltaRun::run() {
    const Activations prepared = pass_.prepare(
        worker_, {pass_.x(worker_), &block_.norm}, {&block_.mixed, &block_.gate, &block_.update, &block_.decay});
    pass_.multiply(worker_, prepared, {&block_.mixed, &block_.gate, &block_.update, &block_.decay}, projected(0), stride_);
    worker_.barrier();
    const Range own = worker_.share(static_cast<int64_t>(states_.size()) * shape_.num_key_heads);
    for (int64_t item = own.first; item < own.stop; ++item) {
        run_head(item / shape_.num_key_heads, item % shape_.num_key_heads);
    }
    worker_.barrier();
    if (worker_.index == 0) {
        for (size_t s = 0; s < states_.size(); ++s) state(s).finish_pass();
    }
    const int64_t size = block_.value_size();
    if (block_.output.weight->is_quantised() && !has_whole_groups()) {
        const Range groups = worker_.share(pass_.rows() * (size / kGroup));
        for (int64_t g = groups.first; g < groups.stop; ++g) {
            k_.quantise(buffers_.inner_values + g * kGroup, 1, buffers_.inner_groups.mine(worker_) + g);
            buffers_.inner_groups.publish(worker_, g, 1);
        }
        worker_.barrier();
    }
    pass_.add_result(worker_, pass_.inner(worker_, size), block_.output, std::nullopt);
}

// All rows of a span through one key head and the value heads that share it.
void DeltaRun::run_head(size_t span, int64_t key_head) const {
    const Span& rows = pass_.input.spans[span];
    for (int64_t offset = 0; offset < rows.num_rows; ++offset) compute_row(span, offset, key_head);
    for (int64_t local = 0; local < shape_.heads_each(); ++local) {
        update_blocks(span, key_head, local);
        for (int64_t offset = 0; offset < rows.num_rows; ++offset) {
            finish_row(rows.first_row + offset, offset, local, key_head * shape_.heads_each() + local);
        }
    }
    keep_rows(span, key_head);
}

// The convolution's inputs of a row of the pass, or of one before it: offset -1 is the row before the first.
const float* DeltaRun::input_row(size_t span, int64_t offset) const {
    if (offset >= 0) return projected(pass_.input.spans[span].first_row + offset);
    const DeltaState& held = state(span);
    return held.inputs(held.num_committed() + held.num_pending() + shape_.conv_width - 1 + offset);
}

void DeltaRun::convolve(size_t span, int64_t offset, int64_t channel, int64_t size, float* out) const {
    const float* inputs[kMostConvWidth];
    const float* factors[kMostConvWidth];
    for (int tap = 0; tap < shape_.conv_width; ++tap) {
        inputs[tap] = input_row(span, offset + tap - (shape_.conv_width - 1)) + channel;
        factors[tap] = block_.convolution.data() + tap * shape_.num_channels() + channel;
    }
    k_.convolve(inputs, factors, shape_.conv_width, size, out);
}

void DeltaRun::compute_row(size_t span, int64_t offset, int64_t key_head) const {
    float* numbers = unit(offset);
    const int64_t dim = shape_.key_dim, key_size = shape_.key_size();
    convolve(span, offset, key_head * dim, dim, numbers);
    k_.rms_norm(numbers, block_.query_norm.weight.data(), block_.query_norm.eps, dim, numbers);
    float* key = numbers + key_at();
    convolve(span, offset, key_size + key_head * dim, dim, key);
    k_.rms_norm(key, block_.key_norm.weight.data(), block_.key_norm.eps, dim, key);
    const float* factors = projected(pass_.input.spans[span].first_row + offset) + shape_.num_channels() +
                           block_.value_size();
    for (int64_t local = 0; local < shape_.heads_each(); ++local) {
        const int64_t head = key_head * shape_.heads_each() + local;
        float* value = numbers + values_at() + local * padded_dim_;
        convolve(span, offset, 2 * key_size + head * shape_.value_dim, shape_.value_dim, value);
        std::fill(value + shape_.value_dim, value + padded_dim_, 0.0f);
        const double speed = double{factors[shape_.num_value_heads + head]} + block_.decay_bias[head];
        const double softplus = std::max(speed, 0.0) + std::log1p(std::exp(-std::fabs(speed)));
        numbers[decays_at() + local] = static_cast<float>(std::exp(-block_.decay_rate[head] * softplus));
        numbers[betas_at() + local] = static_cast<float>(1.0 / (1.0 + std::exp(-double{factors[head]})));
    }
}

// Kept rows of a span, which update a block and read nothing.
DeltaTask DeltaRun::kept_rows(
    size_t span, Range rows, int64_t key_head, int64_t value_head, int64_t block) const {
    const float* first = state(span).row(rows.first);
    const float* values = first + shape_.value_offset() + value_head * padded_dim_ + block * shape_.vector_width;
    const int64_t stride = shape_.row_size();
    return {nullptr, shape_.key_dim, rows.stop - rows.first, first + key_head * shape_.key_dim, stride, nullptr, 0,
            values, stride, first + shape_.decay_offset() + value_head, first + shape_.beta_offset() + value_head,
            stride, nullptr, 0};
}

// Rows of the pass, as this worker has computed them for one of a key head's value heads.
DeltaTask DeltaRun::new_rows(Range rows, int64_t local, int64_t block) const {
    float* first = unit(rows.first);
    const int64_t column = local * padded_dim_ + block * shape_.vector_width, stride = unit_size(shape_);
    return {nullptr, shape_.key_dim, rows.stop - rows.first, first + key_at(), stride, first, stride,
            first + values_at() + column, stride, first + decays_at() + local, first + betas_at() + local,
            stride, first + read_at() + column, stride};
}

// Take the rows of a span through a value head's matrix: committed ones that wait, pending ones, those of the pass.
void DeltaRun::update_blocks(size_t span, int64_t key_head, int64_t local) const {
    alignas(64) thread_local static Scratch scratch;
    const DeltaState& held = state(span);
    const int64_t head = key_head * shape_.heads_each() + local, num_rows = pass_.input.spans[span].num_rows;
    const int64_t num_committed = held.num_committed(), num_bytes = shape_.block_size() * sizeof(float);
    const auto apply = [&](float* memory, DeltaTask task) {
        task.memory = memory;
        if (task.num_rows > 0) k_.delta_rows(task);
    };
    for (int64_t block = 0; block < shape_.num_blocks(); ++block) {
        float* memory = held.block(held.current(), head, block);
        if (num_committed > 0) apply(memory, kept_rows(span, {0, num_committed}, key_head, head, block));
        float* working = held.all_or_none() ? held.block(held.next(), head, block)
                                            : scratch.reserve<float>(shape_.block_size());
        std::memcpy(working, memory, num_bytes);
        if (held.num_pending() > 0) {
            const Range pending{num_committed, num_committed + held.num_pending()};
            apply(working, kept_rows(span, pending, key_head, head, block));
        }
        int64_t done = 0;
        for (size_t i = 0; i < held.snapshot_rows().size(); ++i) {
            apply(working, new_rows({done, held.snapshot_rows()[i]}, local, block));
            done = held.snapshot_rows()[i];
            std::memcpy(held.block(held.pending_snapshots()[i], head, block), working, num_bytes);
        }
        apply(working, new_rows({done, num_rows}, local, block));
    }
}

// Norm and gate what a row read, and leave it as the output projection reads it.
void DeltaRun::finish_row(int64_t row, int64_t offset, int64_t local, int64_t value_head) const {
    float* read = unit(offset) + read_at() + local * padded_dim_;
    const int64_t dim = shape_.value_dim, first = row * block_.value_size() + block_.output_place(value_head) * dim;
    const float* gate = projected(row) + shape_.num_channels() + value_head * dim;
    k_.rms_norm(read, block_.head_norm.weight.data(), block_.head_norm.eps, dim, read);
    const bool is_quantised = block_.output.weight->is_quantised() && has_whole_groups();
    float* gated = is_quantised ? read : buffers_.inner_values + first;
    k_.activate(gate, read, Activation::silu, dim, gated);
    if (!is_quantised) return;
    k_.quantise(gated, dim / kGroup, buffers_.inner_groups.mine(worker_) + first / kGroup);
    buffers_.inner_groups.publish(worker_, first / kGroup, dim / kGroup);
}

// Leave in the state what later passes need of these rows, as far as this key head goes.
void DeltaRun::keep_rows(size_t span, int64_t key_head) const {
    const DeltaState& held = state(span);
    const Span& rows = pass_.input.spans[span];
    const int64_t dim = shape_.key_dim, each = shape_.heads_each(), head = key_head * each;
    const Range channels[] = {
        {key_head * dim, (key_head + 1) * dim},
        {shape_.key_size() + key_head * dim, shape_.key_size() + (key_head + 1) * dim},
        {2 * shape_.key_size() + head * shape_.value_dim, 2 * shape_.key_size() + (head + each) * shape_.value_dim}};
    if (held.all_or_none()) {
        for (const Range& own : channels) {
            keep_window(span, rows.num_rows, held.next(), own);
            for (size_t i = 0; i < held.snapshot_rows().size(); ++i) {
                keep_window(span, held.snapshot_rows()[i], held.pending_snapshots()[i], own);
            }
        }
        return;
    }
    const int64_t num_kept = held.num_committed() + held.num_pending();
    for (int64_t offset = 0; offset < rows.num_rows; ++offset) {
        const float* numbers = unit(offset);
        float* kept = held.row(num_kept + offset);
        std::memcpy(kept + key_head * dim, numbers + key_at(), dim * sizeof(float));
        std::memcpy(kept + shape_.value_offset() + head * padded_dim_, numbers + values_at(),
                    each * padded_dim_ * sizeof(float));
        std::memcpy(kept + shape_.decay_offset() + head, numbers + decays_at(), each * sizeof(float));
        std::memcpy(kept + shape_.beta_offset() + head, numbers + betas_at(), each * sizeof(float));
        float* inputs = held.inputs(num_kept + offset + shape_.conv_width - 1);
        for (const Range& own : channels) {
            std::memcpy(inputs + own.first, projected(rows.first_row + offset) + own.first,
                        (own.stop - own.first) * sizeof(float));
        }
    }
}

// The inputs of the convolution up to the `num_rows`-th row of the pass.
void DeltaRun::keep_window(size_t span, int64_t num_rows, const DeltaState::Copy& copy, Range channels) const {
    const int64_t window = shape_.conv_width - 1;
    for (int64_t i = 0; i < window; ++i) {
        const float* from = input_row(span, num_rows - window + i);
        std::memcpy(copy.window(shape_) + i * shape_.num_channels() + channels.first, from + channels.first,
                    (channels.stop - channels.first) * sizeof(float));
    }
}

}  // namespace

void GatedDeltaNet::settle() {
    // rms_norm divides by the root of the mean square: 1 / sqrt(key_dim) of that is unit length.
    const float dim = static_cast<float>(shape.key_dim);
    key_norm = {std::vector<float>(shape.key_dim, 1.0f / std::sqrt(dim)), kUnitEps / dim};
    query_norm = {std::vector<float>(shape.key_dim, 1.0f / dim), kUnitEps / dim};
}

ScratchNeeds GatedDeltaNet::needs(const std::vector<Span>&, const Kernels&) const {
    return {.hidden = hidden_size(),
            .inputs = mixed.inputs(),
            .inner = value_size(),
            .projected = shape.num_channels() + value_size() + 2 * shape.num_value_heads,
            .unit = DeltaRun::unit_size(shape)};
}

void GatedDeltaNet::run(Pass& pass, Worker& worker, const MixerStates& states) const {
    DeltaRun(pass, worker, *this, states).run();
}

}  // namespace headlong
