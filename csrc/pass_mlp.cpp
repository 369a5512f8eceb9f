// The gated MLP in a pass.
#include <algorithm>

#include "pass.hpp"

namespace headlong {

namespace {
constexpr int64_t kMlpUnit = 64;  // outputs of gate and up that are multiplied, activated and quantised together
}  // namespace

ScratchNeeds GatedMlp::needs(int64_t, const Kernels&) const {
    ScratchNeeds needs = mlp.needs();
    needs.hidden = hidden_size();
    return needs;
}

ScratchNeeds Mlp::needs() const {
    return {.inputs = up.inputs(), .inner = inner(), .unit = 2 * kMlpUnit};
}

int64_t Mlp::num_units() const { return ceil_div(inner(), kMlpUnit); }

void Mlp::run_inner(
    Pass& pass, Worker& worker, const Activations& x, int64_t num_rows, int64_t first_unit, int64_t stop_unit,
    int64_t first_number) const {
    const Kernels& kernels = pass.kernels;
    const PassBuffers& buffers = pass.buffers;
    const int64_t num_groups = inner() / kGroup;
    const bool is_quantised = down.weight->is_quantised();
    const int64_t tiles = kMlpUnit / kernels.tile_width;
    float* ups = buffers.units.mine(worker);
    float* gates = ups + num_rows * kMlpUnit;
    for (int64_t unit = first_unit; unit < stop_unit; ++unit) {
        const int64_t first = unit * kMlpUnit, count = std::min(kMlpUnit, inner() - first);
        const Range own_tiles{unit * tiles, std::min((unit + 1) * tiles, up.weight->num_tiles)};
        if (gate) pass.multiply_rows(x, num_rows, *gate, own_tiles, gates, kMlpUnit);
        pass.multiply_rows(x, num_rows, up, own_tiles, ups, kMlpUnit);
        for (int64_t row = 0; row < num_rows; ++row) {
            float* up_row = ups + row * kMlpUnit;
            float* out = is_quantised ? up_row : buffers.inner_values + first_number + row * inner() + first;
            kernels.activate(gate ? gates + row * kMlpUnit : up_row, gate ? up_row : nullptr, activation, count, out);
            if (is_quantised) {
                const int64_t group = first_number / kGroup + row * num_groups + first / kGroup;
                kernels.quantise(out, count / kGroup, buffers.inner_groups.mine(worker) + group);
                buffers.inner_groups.publish(worker, group, count / kGroup);
            }
        }
    }
}

void GatedMlp::run(Pass& pass, Worker& worker) const {
    const Activations prepared = pass.prepare(worker, {pass.x(worker), &norm}, {&mlp.first(), &mlp.up});
    const Range own = worker.share(mlp.num_units());
    mlp.run_inner(pass, worker, prepared, pass.rows(), own.first, own.stop, 0);
    worker.barrier();
    pass.add_result(worker, pass.inner(worker, mlp.inner()), mlp.down, output_norm);
}

}  // namespace headlong
