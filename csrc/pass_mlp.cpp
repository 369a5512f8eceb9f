// The gated MLP in a pass.
#include <algorithm>

#include "pass.hpp"

namespace headlong {

namespace {
constexpr int64_t kMlpUnit = 64;  // outputs of gate and up that are multiplied, activated and quantised together
}  // namespace

ScratchNeeds GatedMlp::needs(int64_t, const Kernels&) const {
    return {.hidden = hidden_size(), .inputs = gate.inputs(), .inner = down.inputs(), .unit = 2 * kMlpUnit};
}

void GatedMlp::run(Pass& pass, Worker& worker) const {
    const Kernels& kernels = pass.kernels;
    const PassBuffers& buffers = pass.buffers;
    const Activations prepared = pass.prepare(worker, {pass.x(worker), &norm}, {&gate, &up});
    const int64_t inner = down.inputs();
    const int64_t num_groups = inner / kGroup;
    const bool is_quantised = down.weight->is_quantised();
    const int64_t tiles = kMlpUnit / kernels.tile_width;
    float* gates = buffers.units.mine(worker);
    float* ups = gates + pass.rows() * kMlpUnit;
    const Range own = worker.share(ceil_div(inner, kMlpUnit));
    for (int64_t unit = own.first; unit < own.stop; ++unit) {
        const int64_t first = unit * kMlpUnit, count = std::min(kMlpUnit, inner - first);
        const Range own_tiles{unit * tiles, std::min((unit + 1) * tiles, gate.weight->num_tiles)};
        pass.multiply_tiles(prepared, gate, own_tiles, gates, kMlpUnit);
        pass.multiply_tiles(prepared, up, own_tiles, ups, kMlpUnit);
        for (int64_t row = 0; row < pass.rows(); ++row) {
            float* gate_row = gates + row * kMlpUnit;
            float* out = is_quantised ? gate_row : buffers.inner_values + row * inner + first;
            kernels.activate(gate_row, ups + row * kMlpUnit, is_gelu, count, out);
            if (is_quantised) {
                const int64_t group = row * num_groups + first / kGroup;
                kernels.quantise(out, count / kGroup, buffers.inner_groups.mine(worker) + group);
                buffers.inner_groups.publish(worker, group, count / kGroup);
            }
        }
    }
    worker.barrier();
    pass.add_result(worker, pass.inner(worker, inner), down, output_norm);
}

}  // namespace headlong
