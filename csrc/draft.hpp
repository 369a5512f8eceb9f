// A whole draft in one run of the team: score, pick, embed, layer, and again for every depth.
//
// The result is that of the head's steps one by one with the picking of decode/sampling.py, without
// starting the team for each. A sequence leaves when its draft is long enough or too uncertain.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine.hpp"
#include "pick.hpp"

namespace headlong {

// How a nextn head makes the layer's input: fc([norm(embedding), norm(state)]) or the other way round.
struct Fusion {
    Norm embedding_norm, state_norm;
    Linear fc;
    bool is_state_first = false;
};

// A recursive head, checked when it is made.
struct DraftHead {
    std::shared_ptr<Matrix> embedding;
    float embedding_scale = 1.0f;
    std::vector<Layer> layers;             // one
    std::optional<Fusion> fusion;          // absent where the layer reads the embedding beside the state
    Norm norm;
    Linear lm_head;
    bool carries_normed = false;           // whether the state is carried on after `norm`
    float logit_cap = 0.0f;                // logits become cap * tanh(logit / cap); 0 leaves them
    std::vector<int64_t> vocabulary;       // token id of every column; empty when they are the same

    int64_t hidden_size() const { return static_cast<int64_t>(norm.weight.size()); }
    int64_t num_drafted() const { return lm_head.outputs(); }
    void check() const;  // throws std::invalid_argument when sizes do not fit together
};

// Maps the probability of a drafted token to its chance of being accepted, by ranges.
struct Calibration {
    std::vector<double> edges;    // ascending; an edge belongs to the range above it
    std::vector<double> chances;  // one more than edges

    double operator()(double prob) const;
};

// The draft of one sequence.
struct DraftRequest {
    MixerState* cache;
    int64_t first_position;  // in the head's cache, of the row that its first token makes
    int64_t num_tokens;      // at most; at least 1
    double threshold;        // the product of chances below which it ends
    const Calibration* calibration;  // null where probabilities are the chances
    PickRule rule;
    int64_t token_position;  // of the first token, in the sequence
};

struct Drafted {
    std::vector<int64_t> token_ids;
    std::vector<double> probs;
    bool is_broken = false;  // logits without a finite maximum: nothing can be picked
};

// Draft for all requests; `states` is (requests, hidden) and is used as scratch.
std::vector<Drafted> run_draft(
    Engine& engine, const DraftHead& head, std::vector<DraftRequest> requests, float* states);

}  // namespace headlong
