// Picking a token: argmax(scaled logit + noise) without adding up what cannot win.
#pragma once

#include <cstdint>

#include "kernels.hpp"

namespace headlong {

struct Race {
    const float* logits;
    const int64_t* token_ids;  // null when a column is its own token id
    int64_t count;
    double best;               // the largest of the logits, finite
    double temperature;        // above 0
    uint64_t key;              // of the position's noise; see decode/noise.py for the recipe
};

// The column with the largest (logit - best) / temperature + gumbel, the lowest among equals.
int64_t run_race(const Race& race, const Kernels& kernels);

}  // namespace headlong
