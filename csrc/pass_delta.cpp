// The gated delta net in a pass: queries and keys of unit length, a correction by what is recalled, a norm per head.
#include <algorithm>
#include <cmath>

#include "delta_net.hpp"

namespace headlong {

namespace {

constexpr float kUnitEps = 1e-6f;  // added to the squared length of queries and keys

class DeltaRun final : RecurrentRun {
public:
    DeltaRun(const Pass& pass, Worker& worker, const GatedDeltaNet& block, const MixerStates& states)
        : RecurrentRun(pass, worker, block, states, GatedDeltaNet::kFactors), net_(block) {}

    void run() { RecurrentRun::run({&net_.mixed, &net_.gate, &net_.update, &net_.decay}); }

private:
    bool corrects() const override { return true; }
    void compute_row(size_t span, int64_t offset, int64_t key_head) const override;
    void finish_row(int64_t row, int64_t offset, int64_t key_head, float* out) const override;

    const GatedDeltaNet& net_;
};

void DeltaRun::compute_row(size_t span, int64_t offset, int64_t key_head) const {
    float* numbers = unit(offset);
    const int64_t dim = shape_.key_dim;
    convolve(span, offset, key_head * dim, dim, nullptr, numbers);
    k_.rms_norm(numbers, net_.query_norm.weight.data(), net_.query_norm.eps, dim, numbers);
    float* key = numbers + key_at();
    convolve(span, offset, shape_.key_size() + key_head * dim, dim, nullptr, key);
    k_.rms_norm(key, net_.key_norm.weight.data(), net_.key_norm.eps, dim, key);
    convolve_values(span, offset, key_head, nullptr);
    const float* projected_factors = factors(pass_.input.spans[span].first_row + offset);
    for (int64_t local = 0; local < shape_.heads_each(); ++local) {
        const int64_t head = key_head * shape_.heads_each() + local;
        const double speed = softplus(double{projected_factors[shape_.num_value_heads + head]} + net_.decay_bias[head]);
        numbers[decays_at() + local] = static_cast<float>(std::exp(-net_.decay_rate[head] * speed));
        numbers[strengths_at() + local] = static_cast<float>(1.0 / (1.0 + std::exp(-double{projected_factors[head]})));
    }
}

// Norm and gate what every value head read.
void DeltaRun::finish_row(int64_t row, int64_t offset, int64_t key_head, float* out) const {
    const int64_t dim = shape_.value_dim;
    for (int64_t local = 0; local < shape_.heads_each(); ++local) {
        float* read = unit(offset) + read_at() + local * padded_dim_;
        const float* gate = gates(row) + (key_head * shape_.heads_each() + local) * dim;
        k_.rms_norm(read, net_.head_norm.weight.data(), net_.head_norm.eps, dim, read);
        k_.activate(gate, read, Activation::silu, dim, out + local * dim);
    }
}

}  // namespace

void GatedDeltaNet::settle() {
    // rms_norm divides by the root of the mean square: 1 / sqrt(key_dim) of that is unit length.
    const float dim = static_cast<float>(shape.key_dim);
    key_norm = {std::vector<float>(shape.key_dim, 1.0f / std::sqrt(dim)), kUnitEps / dim};
    query_norm = {std::vector<float>(shape.key_dim, 1.0f / dim), kUnitEps / dim};
}

void GatedDeltaNet::run(Pass& pass, Worker& worker, const MixerStates& states) const {
    DeltaRun(pass, worker, *this, states).run();
}

}  // namespace headlong
