// The blocks of a model as the engine runs them: packed weights and constants, checked once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "formats.hpp"
#include "layer_parts.hpp"

namespace headlong {

struct Norm {
    std::vector<float> weight;
    float eps = 0.0f;
};

struct Linear {
    std::shared_ptr<Matrix> weight;
    std::vector<float> bias;  // empty when there is none

    int64_t outputs() const { return weight->outputs; }
    int64_t inputs() const { return weight->inputs; }
};

// Cosines and sines of all positions seen so far, times an amplitude; blocks with the same frequencies share one.
class Rope {
public:
    Rope(std::vector<float> frequencies, double amplitude)
        : frequencies_(frequencies.begin(), frequencies.end()), amplitude_(amplitude) {}

    int64_t half() const { return static_cast<int64_t>(frequencies_.size()); }
    void reach(int64_t num_positions);  // call before a pass, never during one
    const float* cosines(int64_t position) const { return cosines_.data() + position * half(); }
    const float* sines(int64_t position) const { return sines_.data() + position * half(); }

private:
    std::vector<double> frequencies_;
    double amplitude_;
    std::vector<float> cosines_, sines_;
};

constexpr int kMostHeadDim = 4096;
constexpr bool is_head_dim(int size) { return size >= 2 && size % 2 == 0 && size <= kMostHeadDim; }

struct Attention final : Mixer {
    Norm norm;
    Linear query, key, value, output;  // without weights for keys and values, it reads those of another layer
    int num_heads = 0;
    int num_kv_heads = 0;
    int head_dim = 0;
    int value_dim = 0;
    float scale = 0.0f;
    float value_scale = 1.0f;  // multiplies what was attended to
    int64_t window = 0;        // 0 sees all
    int64_t ahead = 0;         // queries turn as if their rows stood so many positions later
    std::vector<float> sinks;  // a score per head that takes its share and brings no value; empty when there are none
    std::shared_ptr<Rope> rope;
    std::optional<Norm> query_norm, key_norm, value_norm, beside_norm, output_norm;
    std::optional<Linear> gate;  // sigmoid of it multiplies what was attended to
    bool adds_to_normed = false; // the result is added to norm(x), not to x

    int64_t query_size() const { return int64_t{num_heads} * head_dim; }
    int64_t key_size() const { return int64_t{num_kv_heads} * head_dim; }
    int64_t value_size() const { return int64_t{num_kv_heads} * value_dim; }
    int64_t attended_size() const { return int64_t{num_heads} * value_dim; }
    AttendShape shape() const { return {num_heads, num_kv_heads, head_dim, value_dim, window}; }

    int64_t hidden_size() const override { return output.outputs(); }
    bool reads_beside() const override { return beside_norm.has_value(); }
    void check() const override;
    void check_state(const MixerState& state, const Span& span) const override;
    ScratchNeeds needs(const std::vector<Span>& spans, const Kernels& kernels) const override;
    void prepare(int64_t num_positions) const override { rope->reach(num_positions + ahead); }
    void run(Pass& pass, Worker& worker, const MixerStates& states) const override;
    bool writes_keys() const override { return key.weight != nullptr; }
    ScratchNeeds needs_of_keys() const override;
    void write_keys(Pass& pass, Worker& worker, const MixerStates& states) const override;
};

// down(activation(gate(x)) * up(x)), or down(activation(up(x))).
struct Mlp {
    std::optional<Linear> gate;
    Linear up, down;
    Activation activation = Activation::silu;

    const Linear& first() const { return gate ? *gate : up; }
    int64_t inner() const { return down.inputs(); }
    int64_t num_units() const;
    ScratchNeeds needs() const;
    // Throws std::invalid_argument unless rows of `size` numbers go in and come out.
    void check(int64_t size) const;
    // Compute these units of what `down` reads, for some rows x, and publish them. The rows' groups (or values, where
    // weights are not quantised) follow one another from `first_number` / 32 (or `first_number`) on.
    void run_inner(Pass& pass, Worker& worker, const Activations& x, int64_t num_rows, int64_t first_unit,
                   int64_t stop_unit, int64_t first_number) const;
};

struct GatedMlp final : Channel {
    Norm norm;
    Mlp mlp;
    std::optional<Norm> output_norm;

    int64_t hidden_size() const override { return mlp.down.outputs(); }
    void check() const override;
    ScratchNeeds needs(int64_t num_rows, const Kernels& kernels) const override;
    void run(Pass& pass, Worker& worker) const override;
};

// What a token brings along for a layer: x += norm(projection(gelu(gate(x)) * its own part of the rows beside x)).
struct PerLayerInput final : Channel {
    Linear gate, projection;
    Norm norm;
    int64_t first = 0;  // where this layer's part of a row begins

    int64_t hidden_size() const override { return projection.outputs(); }
    int64_t reads_up_to() const override { return first + gate.outputs(); }
    void check() const override;
    ScratchNeeds needs(int64_t num_rows, const Kernels& kernels) const override;
    void run(Pass& pass, Worker& worker) const override;
};

// At least one of the first two parts is there.
struct Layer {
    std::shared_ptr<Mixer> mixer;
    std::shared_ptr<Channel> channel, second;
    float scale = 1.0f;  // multiplies x at the end

    int64_t hidden_size() const { return mixer != nullptr ? mixer->hidden_size() : channel->hidden_size(); }
    ScratchNeeds needs(const std::vector<Span>& spans, const Kernels& kernels) const {
        ScratchNeeds needs;
        if (mixer != nullptr) needs.include(mixer->needs(spans, kernels));
        for (const Channel* part : {channel.get(), second.get()}) {
            if (part != nullptr) needs.include(part->needs(num_rows_of(spans), kernels));
        }
        return needs;
    }
    void run(Pass& pass, Worker& worker, const MixerStates& states) const;
};

}  // namespace headlong
