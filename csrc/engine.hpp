// Runs blocks over the rows of a pass with a team of threads.
//
// A whole stack of layers is one run of the team. Every worker takes the same steps, does its share of
// each, and waits at a barrier before it reads what others wrote. Results never depend on which worker
// computed them, because shares are cut between outputs, rows or chunks, never inside a sum.
#pragma once

#include <memory>
#include <vector>

#include "blocks.hpp"
#include "kernels.hpp"
#include "kv_layer.hpp"
#include "pool.hpp"

namespace headlong {

// What one pass works on; x is changed in place, layer by layer.
struct PassInput {
    float* x;  // (rows, hidden)
    int64_t num_rows;
    std::vector<Span> spans;
    const float* beside = nullptr;  // (rows, beside_size) or null
    int64_t beside_size = 0;
};

// Scratch of the running pass; it grows and is kept for as long as it may be wanted again.
struct Workspace {
    Scratch x, groups, inner_groups, values, inner_values, projected, gates, queries, results, units, partials;
    Scratch exchanged, choices, plans, expert_sums, gathered_groups, gathered_values;  // of experts
    Scratch logits, embedded, fused, sums, found;  // of drafts

    // Call this before each pass, ahead of any reservation: it may drop what was reserved before. Memory that a prompt
    // took goes back to the system when no other prompt has come for a while.
    void begin(int64_t num_rows);

private:
    // About half a second. Sooner would slow servers down, where prompts come all the time: memory that was given back
    // costs page faults again.
    static constexpr int kPassesAfterPrompt = 512;

    int passes_left_ = kPassesAfterPrompt;  // until memory is given back
};

class Engine {
public:
    Engine(const char* instruction_set, int num_threads)
        : kernels(pick_kernels(instruction_set)), pool(num_threads) {}

    const Kernels& kernels;
    Pool pool;
    Arena arena;
    Workspace workspace;
    // Buffers that they lent may outlive the engine. Memory of caches is accounted for, so little of it may be spare.
    std::shared_ptr<Recycler> row_buffers = std::make_shared<Recycler>(size_t{16} << 20, 4.0);
    std::shared_ptr<Recycler> cache_buffers = std::make_shared<Recycler>(size_t{16} << 20, 1.25);
    double kernel_s = 0.0;  // time spent in the kernels so far; the rest of a pass is Python

    // The state of layer l and span s is states[l][s]. taps[l] says where the input of layer l is to be
    // copied (rows `tap_stride` apart), or is null. A layer may lack either of its parts.
    void run_layers(
        const PassInput& input, const std::vector<Layer>& layers,
        const std::vector<MixerStates>& states, const std::vector<float*>& taps,
        int64_t tap_stride);
    // One layer with attention over all rows of `input`, as far as it is read: keys and values of all rows go to the
    // caches, y (spans, hidden) is the result of the last row of each span.
    void run_last(const PassInput& input, const Layer& layer, const MixerStates& caches, float* y);
    // y = linear(norm(x)), the norm being optional.
    void project(const float* x, int64_t num_rows, const Norm* norm, const Linear& linear, float* y);
    void normalise(const float* x, int64_t num_rows, const Norm& norm, float* y);
    void residual_silu(const float* x, int64_t num_rows, const Linear& linear, float* y);
};

}  // namespace headlong
