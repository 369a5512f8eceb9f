// Latent attention, a mixer whose heads all read one latent vector per position.
#pragma once

#include "blocks.hpp"

namespace headlong {

struct LatentAttention final : Mixer {
    Norm norm;
    std::optional<Linear> query_down;  // with its norm; absent where queries are made of the rows themselves
    std::optional<Norm> query_norm;
    Linear query;        // per head: dimensions that stay, then those that turn
    Linear latent;       // the latent vector, then the dimensions of the key that turn
    Norm latent_norm;
    Linear key_up;       // per head, from a query to the latent vectors
    Linear value_up;     // per head, from the latent vectors to its values
    Linear output;
    int num_heads = 0;
    int plain_dim = 0;   // dimensions of a query that stay
    int value_dim = 0;
    float scale = 0.0f;
    std::shared_ptr<Rope> rope;

    int rank() const { return static_cast<int>(latent_norm.weight.size()); }
    int rotary_dim() const { return static_cast<int>(2 * rope->half()); }
    int query_dim() const { return plain_dim + rotary_dim(); }
    // What heads read and are asked with in the cache: one key and one value for all of them.
    AttendShape shape() const { return {num_heads, 1, rank() + rotary_dim(), rank(), 0}; }

    int64_t hidden_size() const override { return output.outputs(); }
    void check() const override;
    void check_state(const MixerState& state, const Span& span) const override;
    ScratchNeeds needs(const std::vector<Span>& spans, const Kernels& kernels) const override;
    void prepare(int64_t num_positions) const override { rope->reach(num_positions); }
    void run(Pass& pass, Worker& worker, const MixerStates& states) const override;
    bool writes_keys() const override { return true; }
    ScratchNeeds needs_of_keys() const override;
    void write_keys(Pass& pass, Worker& worker, const MixerStates& states) const override;
};

}  // namespace headlong
