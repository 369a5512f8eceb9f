// The gated delta net, a recurrent mixer: every row updates a matrix per value head, and reads it.
#pragma once

#include "blocks.hpp"
#include "delta_state.hpp"

namespace headlong {

struct GatedDeltaNet final : Mixer {
    Norm norm;
    Linear mixed, gate, update, decay, output;  // mixed: queries, keys and values side by side
    std::vector<float> convolution;             // (width, channels), the oldest row first
    std::vector<float> decay_rate, decay_bias;
    Norm head_norm;
    DeltaShape shape{};
    // Norms that give queries and keys unit length; queries are also scaled. Set by `settle`.
    Norm query_norm, key_norm;

    bool tiles_output = false;  // the output reads one value head of every key head, then the next of each

    int64_t output_place(int64_t value_head) const {
        const int64_t each = shape.heads_each();
        return tiles_output ? value_head % each * shape.num_key_heads + value_head / each : value_head;
    }
    int64_t value_size() const { return int64_t{shape.num_value_heads} * shape.value_dim; }
    // Derive what follows from the shape; call it once, after all else is set.
    void settle();

    int64_t hidden_size() const override { return output.outputs(); }
    void check() const override;
    void check_state(const MixerState& state, const Span& span) const override;
    ScratchNeeds needs(const std::vector<Span>& spans, const Kernels& kernels) const override;
    void run(Pass& pass, Worker& worker, const MixerStates& states) const override;
};

}  // namespace headlong
