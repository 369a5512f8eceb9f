// Mamba-2 in a pass: factors from the step of time, a skip past the state, a gate, a norm of whole groups.
#include <algorithm>
#include <cmath>

#include "mamba2.hpp"

namespace headlong {

namespace {

class MambaRun final : RecurrentRun {
public:
    MambaRun(const Pass& pass, Worker& worker, const Mamba2& block, const MixerStates& states)
        : RecurrentRun(pass, worker, block, states, Mamba2::kFactors), space_(block) {}

    void run() { RecurrentRun::run({&space_.mixed, &space_.gate, &space_.decay}); }

private:
    bool corrects() const override { return false; }
    void compute_row(size_t span, int64_t offset, int64_t key_head) const override;
    void finish_row(int64_t row, int64_t offset, int64_t key_head, float* out) const override;

    const Mamba2& space_;
};

void MambaRun::compute_row(size_t span, int64_t offset, int64_t key_head) const {
    float* numbers = unit(offset);
    const int64_t dim = shape_.key_dim;
    const float* bias = space_.convolution_bias.data();
    convolve(span, offset, key_head * dim, dim, bias, numbers);
    convolve(span, offset, shape_.key_size() + key_head * dim, dim, bias, numbers + key_at());
    convolve_values(span, offset, key_head, bias);
    const float* projected_steps = factors(pass_.input.spans[span].first_row + offset);
    for (int64_t local = 0; local < shape_.heads_each(); ++local) {
        const int64_t head = key_head * shape_.heads_each() + local;
        const double raw = softplus(double{projected_steps[head]} + space_.decay_bias[head]);
        const double step = std::min(std::max(raw, space_.least_step), space_.most_step);
        numbers[decays_at() + local] = static_cast<float>(std::exp(-space_.decay_rate[head] * step));
        numbers[strengths_at() + local] = static_cast<float>(step);
    }
}

// Add what goes past the state, gate, and norm all heads of the group together.
void MambaRun::finish_row(int64_t row, int64_t offset, int64_t key_head, float* out) const {
    const int64_t dim = shape_.value_dim, size = finished_size();
    for (int64_t local = 0; local < shape_.heads_each(); ++local) {
        const int64_t head = key_head * shape_.heads_each() + local;
        float* read = unit(offset) + read_at() + local * padded_dim_;
        const float* value = unit(offset) + values_at() + local * padded_dim_;
        for (int64_t i = 0; i < dim; ++i) read[i] += space_.skip[head] * value[i];
        k_.activate(gates(row) + head * dim, read, Activation::silu, dim, out + local * dim);
    }
    k_.rms_norm(out, space_.group_norm.weight.data() + key_head * size, space_.group_norm.eps, size, out);
}

}  // namespace

void Mamba2::run(Pass& pass, Worker& worker, const MixerStates& states) const {
    MambaRun(pass, worker, *this, states).run();
}

}  // namespace headlong
