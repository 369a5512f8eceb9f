// Mamba-2, a recurrent mixer: how much a row decays and adds follows from one step of time per head.
#pragma once

#include "recurrent_mixer.hpp"

namespace headlong {

struct Mamba2 final : RecurrentMixer {
    static constexpr int64_t kFactors = 1;  // per head: the step, which `decay` projects

    std::vector<float> convolution_bias;  // (channels)
    std::vector<float> skip;              // (heads)
    double least_step = 0.0, most_step = 0.0;
    Norm group_norm;  // of all heads

    void check() const override;
    ScratchNeeds needs(const std::vector<Span>&, const Kernels&) const override { return needs_with(kFactors); }
    void run(Pass& pass, Worker& worker, const MixerStates& states) const override;
};

}  // namespace headlong
