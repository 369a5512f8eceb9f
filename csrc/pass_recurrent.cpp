// A recurrent mixer in a pass: project, convolve, update and read the matrices, finish, project.
#include <algorithm>
#include <cstring>

#include "recurrent_mixer.hpp"

namespace headlong {

void RecurrentRun::run(std::initializer_list<const Linear*> projections) {
    const Activations prepared = pass_.prepare(worker_, {pass_.x(worker_), &block_.norm}, projections);
    pass_.multiply(worker_, prepared, projections, projected(0), stride_);
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
void RecurrentRun::run_head(size_t span, int64_t key_head) const {
    const Span& rows = pass_.input.spans[span];
    for (int64_t offset = 0; offset < rows.num_rows; ++offset) compute_row(span, offset, key_head);
    for (int64_t local = 0; local < shape_.heads_each(); ++local) update_blocks(span, key_head, local);
    for (int64_t offset = 0; offset < rows.num_rows; ++offset) leave_row(rows.first_row + offset, offset, key_head);
    keep_rows(span, key_head);
}

// The convolution's inputs of a row of the pass, or of one before it: offset -1 is the row before the first.
const float* RecurrentRun::input_row(size_t span, int64_t offset) const {
    if (offset >= 0) return projected(pass_.input.spans[span].first_row + offset);
    const RecurrentState& held = state(span);
    return held.inputs(held.num_committed() + held.num_pending() + shape_.conv_width - 1 + offset);
}

void RecurrentRun::convolve(size_t span, int64_t offset, int64_t channel, int64_t size, const float* bias,
                            float* out) const {
    const float* inputs[kMostConvWidth];
    const float* factors[kMostConvWidth];
    for (int tap = 0; tap < shape_.conv_width; ++tap) {
        inputs[tap] = input_row(span, offset + tap - (shape_.conv_width - 1)) + channel;
        factors[tap] = block_.convolution.data() + tap * shape_.num_channels() + channel;
    }
    k_.convolve(inputs, factors, bias == nullptr ? nullptr : bias + channel, shape_.conv_width, size, out);
}

// The values of a key head's value heads, padded with zeros.
void RecurrentRun::convolve_values(size_t span, int64_t offset, int64_t key_head, const float* bias) const {
    for (int64_t local = 0; local < shape_.heads_each(); ++local) {
        const int64_t head = key_head * shape_.heads_each() + local;
        float* value = unit(offset) + values_at() + local * padded_dim_;
        convolve(span, offset, 2 * shape_.key_size() + head * shape_.value_dim, shape_.value_dim, bias, value);
        std::fill(value + shape_.value_dim, value + padded_dim_, 0.0f);
    }
}

// Kept rows of a span, which update a block and read nothing.
RecurrentTask RecurrentRun::kept_rows(
    size_t span, Range rows, int64_t key_head, int64_t value_head, int64_t block) const {
    const float* first = state(span).row(rows.first);
    const float* values = first + shape_.value_offset() + value_head * padded_dim_ + block * shape_.vector_width;
    const int64_t stride = shape_.row_size();
    return {nullptr, shape_.key_dim, rows.stop - rows.first, first + key_head * shape_.key_dim, stride, nullptr, 0,
            values, stride, first + shape_.decay_offset() + value_head, first + shape_.strength_offset() + value_head,
            stride, nullptr, 0, corrects()};
}

// Rows of the pass, as this worker has computed them for one of a key head's value heads.
RecurrentTask RecurrentRun::new_rows(Range rows, int64_t local, int64_t block) const {
    float* first = unit(rows.first);
    const int64_t column = local * padded_dim_ + block * shape_.vector_width, stride = unit_size(shape_);
    return {nullptr, shape_.key_dim, rows.stop - rows.first, first + key_at(), stride, first, stride,
            first + values_at() + column, stride, first + decays_at() + local, first + strengths_at() + local,
            stride, first + read_at() + column, stride, corrects()};
}

// Take the rows of a span through a value head's matrix: committed ones that wait, pending ones, those of the pass.
void RecurrentRun::update_blocks(size_t span, int64_t key_head, int64_t local) const {
    alignas(64) thread_local static Scratch scratch;
    const RecurrentState& held = state(span);
    const int64_t head = key_head * shape_.heads_each() + local, num_rows = pass_.input.spans[span].num_rows;
    const int64_t num_committed = held.num_committed(), num_bytes = shape_.block_size() * sizeof(float);
    const auto apply = [&](float* memory, RecurrentTask task) {
        task.memory = memory;
        if (task.num_rows > 0) k_.recurrent_rows(task);
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

// Leave what the value heads of a key head have read as the output projection reads it.
void RecurrentRun::leave_row(int64_t row, int64_t offset, int64_t key_head) const {
    alignas(64) thread_local static Scratch scratch;
    const bool is_quantised = block_.output.weight->is_quantised() && has_whole_groups();
    float* finished = scratch.reserve<float>(finished_size());
    finish_row(row, offset, key_head, finished);
    const int64_t size = piece_size(), heads = size / shape_.value_dim, first_head = key_head * shape_.heads_each();
    for (int64_t local = 0; local < shape_.heads_each(); local += heads) {
        const float* piece = finished + local * shape_.value_dim;
        const int64_t first = row * block_.value_size() + block_.output_place(first_head + local) * shape_.value_dim;
        if (!is_quantised) {
            std::memcpy(buffers_.inner_values + first, piece, size * sizeof(float));
            continue;
        }
        k_.quantise(piece, size / kGroup, buffers_.inner_groups.mine(worker_) + first / kGroup);
        buffers_.inner_groups.publish(worker_, first / kGroup, size / kGroup);
    }
}

// Leave in the state what later passes need of these rows, as far as this key head goes.
void RecurrentRun::keep_rows(size_t span, int64_t key_head) const {
    const RecurrentState& held = state(span);
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
        std::memcpy(kept + shape_.strength_offset() + head, numbers + strengths_at(), each * sizeof(float));
        float* inputs = held.inputs(num_kept + offset + shape_.conv_width - 1);
        for (const Range& own : channels) {
            std::memcpy(inputs + own.first, projected(rows.first_row + offset) + own.first,
                        (own.stop - own.first) * sizeof(float));
        }
    }
}

// The inputs of the convolution up to the `num_rows`-th row of the pass.
void RecurrentRun::keep_window(size_t span, int64_t num_rows, const RecurrentState::Copy& copy, Range channels) const {
    const int64_t window = shape_.conv_width - 1;
    for (int64_t i = 0; i < window; ++i) {
        const float* from = input_row(span, num_rows - window + i);
        std::memcpy(copy.window(shape_) + i * shape_.num_channels() + channels.first, from + channels.first,
                    (channels.stop - channels.first) * sizeof(float));
    }
}

ScratchNeeds RecurrentMixer::needs_with(int64_t num_factors) const {
    return {.hidden = hidden_size(),
            .inputs = mixed.inputs(),
            .inner = value_size(),
            .projected = shape.num_channels() + value_size() + num_factors * shape.num_value_heads,
            .unit = RecurrentRun::unit_size(shape)};
}

}  // namespace headlong
