// What mixers with a matrix per head share: projections, a short convolution, and how rows pass through the matrices.
//
// Every row decays a head's matrix, adds key ⊗ value to it, and reads it with its query. Mixers differ in how they make
// queries, keys, values and factors of what was projected, in what a key takes back before it adds, and in what they do
// with what was read.
#pragma once

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "blocks.hpp"
#include "pass.hpp"
#include "recurrent_state.hpp"

namespace headlong {

struct RecurrentMixer : Mixer {
    Norm norm;
    Linear mixed, gate, decay, output;  // mixed: queries, keys and values side by side
    std::vector<float> convolution;     // (width, channels), the oldest row first
    std::vector<float> decay_rate, decay_bias;
    RecurrentShape shape{};
    bool tiles_output = false;  // the output reads one value head of every key head, then the next of each

    // Where the output reads a value head, counted in heads.
    int64_t output_place(int64_t value_head) const {
        const int64_t each = shape.heads_each();
        return tiles_output ? value_head % each * shape.num_key_heads + value_head / each : value_head;
    }
    int64_t value_size() const { return int64_t{shape.num_value_heads} * shape.value_dim; }
    int64_t hidden_size() const override { return output.outputs(); }
    void check_state(const MixerState& state, const Span& span) const override;

protected:
    // Check all that is here; what a mixer has beside it, it checks itself.
    void check_shared() const;
    // With so many factors per value head among what is projected.
    ScratchNeeds needs_with(int64_t num_factors) const;
};

inline double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }

// A mixer in a pass, as one worker computes it. A worker takes whole key heads of a sequence, with the value heads that
// share them. It computes their queries, keys and values for all rows, and then takes the rows through the matrices in
// order, block of columns by block.
class RecurrentRun {
public:
    // Numbers per row that a worker computes for one key head: query, key, values, factors, and what is read.
    static int64_t unit_size(const RecurrentShape& shape) {
        return 2 * shape.key_dim + shape.heads_each() * (2 * shape.padded_dim() + 2);
    }

protected:
    RecurrentRun(const Pass& pass, Worker& worker, const RecurrentMixer& block, const MixerStates& states,
                 int64_t num_factors)
        : pass_(pass), k_(pass.kernels), block_(block), shape_(block.shape), padded_dim_(shape_.padded_dim()),
          stride_(shape_.num_channels() + block.value_size() + num_factors * shape_.num_value_heads),
          buffers_(pass.buffers), worker_(worker), states_(states) {}
    ~RecurrentRun() = default;

    // All of a pass. The projections begin with `mixed` and `gate`; those of factors follow.
    void run(std::initializer_list<const Linear*> projections);

    // Compute a row's numbers of a key head, from `convolve`, `factors` and what the block has.
    virtual void compute_row(size_t span, int64_t offset, int64_t key_head) const = 0;
    // Make `size` numbers that the output projection reads of what the value heads of a key head have read.
    virtual void finish_row(int64_t row, int64_t offset, int64_t key_head, float* out) const = 0;
    // Whether what a key recalls is taken back before its value is added.
    virtual bool corrects() const = 0;

    // Where the numbers of a row begin in a worker's scratch.
    int64_t key_at() const { return shape_.key_dim; }
    int64_t values_at() const { return 2 * shape_.key_dim; }
    int64_t read_at() const { return values_at() + shape_.heads_each() * padded_dim_; }
    int64_t decays_at() const { return read_at() + shape_.heads_each() * padded_dim_; }
    int64_t strengths_at() const { return decays_at() + shape_.heads_each(); }

    float* projected(int64_t row) const { return buffers_.projected.whole() + row * stride_; }
    const float* gates(int64_t row) const { return projected(row) + shape_.num_channels(); }
    const float* factors(int64_t row) const { return gates(row) + block_.value_size(); }
    float* unit(int64_t offset) const { return buffers_.units.mine(worker_) + offset * unit_size(shape_); }
    // Numbers of what a key head leaves for the output projection.
    int64_t finished_size() const { return int64_t{shape_.heads_each()} * shape_.value_dim; }
    // silu of the convolution, with a bias that may be null.
    void convolve(size_t span, int64_t offset, int64_t channel, int64_t size, const float* bias, float* out) const;
    void convolve_values(size_t span, int64_t offset, int64_t key_head, const float* bias) const;

    const Pass& pass_;
    const Kernels& k_;
    const RecurrentMixer& block_;
    const RecurrentShape& shape_;
    const int64_t padded_dim_;

private:
    RecurrentState& state(size_t span) const { return static_cast<RecurrentState&>(*states_[span]); }
    // Numbers that the output reads side by side: of a value head, or of all that share a key head.
    int64_t piece_size() const { return block_.tiles_output ? shape_.value_dim : finished_size(); }
    // Groups that one piece fills can be quantised by who computes them.
    bool has_whole_groups() const { return piece_size() % kGroup == 0; }

    void run_head(size_t span, int64_t key_head) const;
    const float* input_row(size_t span, int64_t offset) const;
    void update_blocks(size_t span, int64_t key_head, int64_t local) const;
    RecurrentTask kept_rows(size_t span, Range rows, int64_t key_head, int64_t value_head, int64_t block) const;
    RecurrentTask new_rows(Range rows, int64_t local, int64_t block) const;
    void leave_row(int64_t row, int64_t offset, int64_t key_head) const;
    void keep_rows(size_t span, int64_t key_head) const;
    void keep_window(size_t span, int64_t num_rows, const RecurrentState::Copy& copy, Range channels) const;

    const int64_t stride_;  // of projected rows
    const PassBuffers& buffers_;
    Worker& worker_;
    const MixerStates& states_;
};

}  // namespace headlong
