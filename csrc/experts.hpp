// Mixtures of experts: every row goes through the few experts that its router chooses, and through a shared part.
#pragma once

#include "blocks.hpp"
#include "pool.hpp"

namespace headlong {

// One of a row's experts, and its share of their sum.
struct Choice {
    int32_t expert;
    float share;
};

struct Router {
    Linear linear;  // float32, or as precise as the file
    std::vector<float> scales, choice_bias;  // one per expert, or empty
    std::optional<Norm> norm;  // instead of the block's
    int num_chosen = 1;
    int num_groups = 1;
    int num_chosen_groups = 1;
    bool is_sigmoid = false;
    bool is_renormalised = true;

    void check(int64_t num_experts, int64_t hidden) const;
    // Choose a row's experts by its logits, in the order of their numbers. Of equal ones the first is chosen; a score
    // that is not a number comes before all others, so that it is noticed. `scores` and `heights` are scratch.
    void choose(const float* logits, float* scores, float* heights, Choice* choices) const;
};

float sigmoid(float x);

struct ExpertPlan;

struct Experts final : Channel {
    Norm norm;
    Router router;
    std::vector<Mlp> experts;
    std::shared_ptr<GatedMlp> shared;
    bool shares_norm = false;  // the shared part reads what experts read
    std::optional<Linear> shared_gate, reduce, expand;
    std::optional<Norm> sum_norm, output_norm;

    int64_t expert_size() const { return experts.front().down.outputs(); }
    int64_t hidden_size() const override { return router.linear.inputs(); }
    void check() const override;
    ScratchNeeds needs(int64_t num_rows, const Kernels& kernels) const override;
    void run(Pass& pass, Worker& worker) const override;

private:
    bool ends_with_norms() const { return sum_norm || output_norm || (shared != nullptr && shared->output_norm); }
    void choose_all(Pass& pass, Worker& worker, const float* logits, const ExpertPlan& plan) const;
    void run_shared_inner(Pass& pass, Worker& worker, const Activations& x) const;
    void run_inner(Pass& pass, Worker& worker, const Activations& x, const Activations* shared_x,
                   const ExpertPlan& plan) const;
    Activations shared_inner(const Pass& pass, const Worker& worker) const;
    void sum_experts(Pass& pass, Worker& worker, const ExpertPlan& plan, Range tiles, float* sums) const;
    void add_columns(Pass& pass, Worker& worker, Range tiles, float* sums) const;
    void add_normed(Pass& pass, Worker& worker, Range tiles, const float* sums) const;
};

}  // namespace headlong
