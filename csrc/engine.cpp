#include "engine.hpp"

#include <algorithm>
#include <cstring>

#include "pass.hpp"

namespace headlong {

namespace {
constexpr int64_t kManyRows = 64;  // more than most rounds have, fewer than a chunk of a prompt
}  // namespace

void Workspace::begin(int64_t num_rows) {
    if (num_rows >= kManyRows) {
        passes_left_ = kPassesAfterPrompt;
    } else if (passes_left_ > 0 && --passes_left_ == 0) {
        *this = {};
        trim_heap();
        passes_left_ = 0;
    }
}

void Engine::run_layers(
    const PassInput& input, const std::vector<Layer>& layers,
    const std::vector<MixerStates>& states, const std::vector<float*>& taps,
    int64_t tap_stride) {
    int64_t num_positions = 0;
    for (const Span& span : input.spans) {
        num_positions = std::max(num_positions, span.first_position + span.num_rows);
    }
    ScratchNeeds needs;
    for (const Layer& layer : layers) {
        if (layer.mixer != nullptr) layer.mixer->prepare(num_positions);
        needs.include(layer.needs(input.spans, kernels));
    }
    workspace.begin(input.num_rows);
    const TeamScratch team(pool, input.num_rows, needs.hidden);
    Pass pass(*this, input, team, needs);
    pool.run([&](Worker& worker) {
        pass.begin(worker);
        for (size_t i = 0; i < layers.size(); ++i) {
            if (taps[i] != nullptr) {
                const int64_t size = layers[i].hidden_size();
                const Range own = worker.share(input.num_rows);
                for (int64_t row = own.first; row < own.stop; ++row) {
                    std::memcpy(taps[i] + row * tap_stride, pass.x(worker) + row * size, size * sizeof(float));
                }
            }
            layers[i].run(pass, worker, states[i]);
        }
        pass.end(worker);
    });
}

void Engine::run_last(
    const PassInput& input, const Layer& layer, const MixerStates& caches, float* y) {
    const int64_t size = layer.hidden_size();
    const Mixer& mixer = *layer.mixer;
    if (!mixer.writes_keys()) {
        std::vector<float> x(input.x, input.x + input.num_rows * size);
        PassInput whole = input;
        whole.x = x.data();
        run_layers(whole, {layer}, {caches}, {nullptr}, 0);
        for (size_t s = 0; s < input.spans.size(); ++s) {
            const int64_t last = input.spans[s].first_row + input.spans[s].num_rows - 1;
            std::memcpy(y + s * size, &x[last * size], size * sizeof(float));
        }
        return;
    }
    const auto num_spans = static_cast<int64_t>(input.spans.size());
    PassInput last{y, num_spans, {}, nullptr};
    std::vector<float> beside(input.beside != nullptr ? num_spans * size : 0);
    int64_t num_positions = 0;
    for (int64_t s = 0; s < num_spans; ++s) {
        const Span& span = input.spans[s];
        const int64_t row = span.first_row + span.num_rows - 1, position = span.first_position + span.num_rows - 1;
        std::memcpy(y + s * size, input.x + row * size, size * sizeof(float));
        if (!beside.empty()) std::memcpy(&beside[s * size], input.beside + row * size, size * sizeof(float));
        last.spans.push_back({s, 1, position});
        num_positions = std::max(num_positions, position + 1);
    }
    if (!beside.empty()) last.beside = beside.data();
    if (num_spans < input.num_rows) {
        mixer.prepare(num_positions);
        workspace.begin(input.num_rows);
        Pass pass(*this, input, TeamScratch(pool), mixer.needs_of_keys());
        pool.run([&](Worker& worker) { mixer.write_keys(pass, worker, caches); });
    }
    run_layers(last, {layer}, {caches}, {nullptr}, 0);  // writes the keys and values of last rows as they were
}

void Engine::project(
    const float* x, int64_t num_rows, const Norm* norm, const Linear& linear, float* y) {
    const PassInput input{nullptr, num_rows, {}};
    workspace.begin(num_rows);
    Pass pass(*this, input, TeamScratch(pool), {.inputs = linear.inputs()});
    pool.run([&](Worker& worker) {
        pass.project_tiles(worker, x, norm, linear, worker.share(linear.weight->num_tiles), y);
    });
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
