#include "engine.hpp"

#include <algorithm>
#include <cstring>

#include "pass.hpp"

namespace headlong {

void Engine::run_layers(
    const PassInput& input, const std::vector<Layer>& layers,
    const std::vector<std::vector<KVLayer*>>& caches, const std::vector<float*>& taps,
    int64_t tap_stride) {
    int64_t num_positions = 0;
    for (const Span& span : input.spans) {
        num_positions = std::max(num_positions, span.first_position + span.num_rows);
    }
    for (const Layer& layer : layers) {
        if (layer.attention != nullptr) layer.attention->rope->reach(num_positions);
    }
    Pass pass(*this, input, layers);
    pool.run([&](Member& me) {
        for (size_t i = 0; i < layers.size(); ++i) {
            if (taps[i] != nullptr) {
                const int64_t size = layers[i].attention->hidden_size();
                const Member::Range own = me.share(input.num_rows);
                for (int64_t row = own.first; row < own.stop; ++row) {
                    std::memcpy(taps[i] + row * tap_stride, input.x + row * size, size * sizeof(float));
                }
            }
            if (layers[i].attention != nullptr) pass.attention(me, *layers[i].attention, caches[i]);
            if (layers[i].mlp != nullptr) pass.gated_mlp(me, *layers[i].mlp);
        }
    });
}

void Engine::project(
    const float* x, int64_t num_rows, const Norm* norm, const Linear& linear, float* y) {
    const PassInput input{nullptr, num_rows, {}};
    Pass pass(*this, input, linear);
    pool.run([&](Member& me) { pass.project(me, x, norm, linear, y); });
}

void Engine::normalise(const float* x, int64_t num_rows, const Norm& norm, float* y) {
    const auto size = static_cast<int64_t>(norm.weight.size());
    // A few rows take less time than waking the team.
    for (int64_t row = 0; row < num_rows; ++row) {
        kernels.rms_norm(x + row * size, norm.weight.data(), norm.eps, size, y + row * size);
    }
}

void Engine::residual_silu(const float* x, int64_t num_rows, const Linear& linear, float* y) {
    project(x, num_rows, nullptr, linear, y);
    const int64_t size = linear.outputs();
    for (int64_t row = 0; row < num_rows; ++row) {
        kernels.add_silu(x + row * size, y + row * size, size, y + row * size);
    }
}

}  // namespace headlong
