// Picking a token: filters, and argmax(scaled logit + noise) without adding up what cannot win.
//
// ops/filters.py, ops/race.py and ops/noise.py define the results; here is only less work.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels.hpp"

namespace headlong {

struct Winner {
    int64_t column = -1;  // of the whole row
    double score = 0.0;

    // Whether this one wins against another: the larger score, the lower column among equals.
    bool beats(const Winner& other) const {
        return other.column < 0 || score > other.score || (score == other.score && column < other.column);
    }
};

struct Race {
    const float* logits;
    const int64_t* token_ids;  // null when a column is its own token id
    int64_t count;
    double best;               // the largest of the logits, or of a longer row they are part of; finite
    double temperature;        // above 0
    uint64_t key;              // of the position's noise; see ops/noise.py for the recipe
    int64_t first_column = 0;  // where these logits stand in that row
    Winner leader{};           // a token of that row to beat: a part without likely ones is soon through
};

// The column with the largest (logit - best) / temperature + gumbel, the lowest among equals; the leader
// when none of these logits beats it.
Winner run_race(const Race& race, const Kernels& kernels);

// How the most likely token of a row does in a race: its noise alone counts.
Winner enter_best(uint64_t key, int64_t token_id, int64_t column, const Kernels& kernels);

// What the noise of all tokens at one position has in common.
uint64_t noise_key(uint64_t seed, int64_t position, const Kernels& kernels);

// How a request samples; as in SamplingParams.
struct PickRule {
    double temperature = 0.0;
    int64_t top_k = 0;  // 0 keeps all
    double top_p = 1.0;
    double min_p = 0.0;
    uint64_t seed = 0;

    bool has_filters(int64_t count) const {
        return temperature > 0 && ((top_k > 0 && top_k < count) || top_p < 1 || min_p > 0);
    }
};

// The columns that top-k, top-p and min-p leave of a row whose largest logit is `best`, ascending.
std::vector<int64_t> surviving_columns(
    const float* logits, int64_t count, double best, const PickRule& rule, const Kernels& kernels);

// Some columns of a row and what stands in them.
struct Survivors {
    std::vector<int64_t> columns;  // ascending
    std::vector<float> logits;
    std::vector<int64_t> token_ids;
};

// What a rule's filters leave of a row; `vocabulary` is null when a column is its own token id.
Survivors survivors_of(
    const float* logits, int64_t count, const int64_t* vocabulary, double best, const PickRule& rule,
    const Kernels& kernels);

// The column that wins among them.
int64_t race_among(const Survivors& survivors, double best, double temperature, uint64_t key, const Kernels& kernels);

// The token that a rule picks of a row of bare logits at a position; -1 when they have no finite maximum.
int64_t pick_token(const float* logits, int64_t count, const PickRule& rule, int64_t position, const Kernels& kernels);

// Σ e^((logit - best) / temperature) to six digits: how sure a guess is. Chunk by chunk, so that threads
// may share the chunks out without changing a bit.
constexpr int64_t kSumChunk = 256;
double sum_of_chunk(const float* logits, int64_t count, double best, double temperature, const Kernels& kernels);
double sum_relative(const float* logits, int64_t count, double best, double temperature, const Kernels& kernels);

}  // namespace headlong
