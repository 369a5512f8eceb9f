// What tokens bring along for a layer, in a pass: gate, GELU, multiply, project, norm, add.
#include <algorithm>

#include "pass.hpp"

namespace headlong {

namespace {
constexpr int64_t kGateUnit = 64;  // outputs of the gate that are multiplied, activated and quantised together
}  // namespace

ScratchNeeds PerLayerInput::needs(int64_t, const Kernels&) const {
    return {.hidden = hidden_size(), .inputs = gate.inputs(), .inner = projection.inputs(), .unit = kGateUnit};
}

void PerLayerInput::run(Pass& pass, Worker& worker) const {
    const Kernels& kernels = pass.kernels;
    const PassBuffers& buffers = pass.buffers;
    const Activations prepared = pass.prepare(worker, {pass.x(worker)}, {&gate});
    const int64_t inner = projection.inputs(), num_groups = inner / kGroup;
    const bool is_quantised = projection.weight->is_quantised();
    const int64_t tiles = kGateUnit / kernels.tile_width;
    float* gates = buffers.units.mine(worker);
    const Range own = worker.share(ceil_div(inner, kGateUnit));
    for (int64_t unit = own.first; unit < own.stop; ++unit) {
        const int64_t start = unit * kGateUnit, count = std::min(kGateUnit, inner - start);
        pass.multiply_tiles(prepared, gate, {unit * tiles, std::min((unit + 1) * tiles, gate.weight->num_tiles)},
                            gates, kGateUnit);
        for (int64_t row = 0; row < pass.rows(); ++row) {
            float* gate_row = gates + row * kGateUnit;
            const float* own_row = pass.input.beside + row * pass.input.beside_size + first + start;
            float* out = is_quantised ? gate_row : buffers.inner_values + row * inner + start;
            kernels.activate(gate_row, own_row, Activation::gelu_tanh, count, out);
            if (is_quantised) {
                const int64_t group = row * num_groups + start / kGroup;
                kernels.quantise(out, count / kGroup, buffers.inner_groups.mine(worker) + group);
                buffers.inner_groups.publish(worker, group, count / kGroup);
            }
        }
    }
    worker.barrier();
    pass.add_result(worker, pass.inner(worker, inner), projection, norm);
}

}  // namespace headlong
