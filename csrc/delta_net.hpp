// The gated delta net, a recurrent mixer: a key takes back what it recalls before it adds its value.
#pragma once

#include "recurrent_mixer.hpp"

namespace headlong {

struct GatedDeltaNet final : RecurrentMixer {
    static constexpr int64_t kFactors = 2;  // per value head: update, decay

    Linear update;
    Norm head_norm;
    // Norms that give queries and keys unit length; queries are also scaled. Set by `settle`.
    Norm query_norm, key_norm;

    // Derive what follows from the shape; call it once, after all else is set.
    void settle();

    void check() const override;
    ScratchNeeds needs(const std::vector<Span>&, const Kernels&) const override { return needs_with(kFactors); }
    void run(Pass& pass, Worker& worker, const MixerStates& states) const override;
};

}  // namespace headlong
