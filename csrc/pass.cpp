#include "pass.hpp"

#include <algorithm>
#include <cstring>

namespace headlong {

PassBuffers::PassBuffers(
    Workspace& workspace, const TeamScratch& team, const PassInput& input, const ScratchNeeds& needs,
    const Kernels& kernels) {
    const int64_t rows = input.num_rows, num_workers = team.num_workers();
    const int64_t num_groups = ceil_div(needs.inputs, kGroup), most_alone = team.most_rows_alone(rows);
    x = team.share(workspace.x, rows * needs.hidden, input.x);
    groups = team.make_private<ActGroup>(workspace.groups, most_alone * num_groups, rows * num_groups);
    values = team.make_private<float>(workspace.values, most_alone * needs.inputs, rows * needs.inputs);
    inner_groups = team.share<ActGroup>(workspace.inner_groups, rows * ceil_div(needs.inner, kGroup));
    inner_values = workspace.inner_values.reserve<float>(rows * needs.inner);
    gates = workspace.gates.reserve<float>(rows * needs.gates);
    queries = team.share<uint8_t>(workspace.queries, rows * needs.query_bytes);
    bytes_per_cut = needs.cut_bytes;
    partials = team.share<uint8_t>(workspace.partials, num_workers * page_apart<uint8_t>(2 * bytes_per_cut));
    projected = {workspace.projected, rows * needs.projected, rows <= kFewRows ? num_workers : 1};
    const int64_t columns = std::max(needs.hidden, needs.sums);
    const int64_t own_columns = ceil_div(ceil_div(columns, kernels.tile_width), num_workers) * kernels.tile_width;
    results = team.make_private<float>(workspace.results, rows * own_columns, rows * needs.hidden);
    units = team.make_private<float>(workspace.units, rows * needs.unit);
    exchanged = workspace.exchanged.reserve<float>(rows * needs.exchanged);
    choices = team.make_private<Choice>(workspace.choices, rows * needs.choices);
    plans = team.make_private<uint8_t>(workspace.plans, needs.plan_bytes);
    sums = team.make_private<float>(workspace.expert_sums, needs.sums > 0 ? rows * own_columns : 0);
    gathered_groups = team.make_private<ActGroup>(workspace.gathered_groups, rows * ceil_div(needs.gathered, kGroup));
    gathered_values = team.make_private<float>(workspace.gathered_values, rows * needs.gathered);
}

void Pass::prepare_row(
    const ProjectionInput& from, int64_t row, const Forms& forms, float* values, ActGroup* groups) const {
    const int64_t size = from.beside == nullptr ? forms.inputs : forms.inputs / 2;
    const float* x = from.x + row * size;
    const float* ready = values;
    if (from.beside != nullptr) {
        const Norm& norm = *from.beside_norm;
        kernels.rms_norm(from.beside + row * size, norm.weight.data(), norm.eps, size, values);
        kernels.rms_norm(x, from.norm->weight.data(), from.norm->eps, size, values + size);
    } else if (from.norm != nullptr) {
        kernels.rms_norm(x, from.norm->weight.data(), from.norm->eps, size, values);
    } else {
        ready = x;
        if (forms.values) std::memcpy(values, x, size * sizeof(float));
    }
    if (forms.groups) kernels.quantise(ready, forms.inputs / kGroup, groups);
}

Activations Pass::prepare(
    Worker& worker, const ProjectionInput& from, std::initializer_list<const Linear*> readers) const {
    Forms forms;
    for (const Linear* reader : readers) {
        forms.inputs = std::max(forms.inputs, reader->inputs());
        (reader->weight->is_quantised() ? forms.groups : forms.values) = true;
    }
    const int64_t num_groups = forms.inputs / kGroup;
    const bool is_alone = team_.computes_rows_alone(worker, rows());
    float* values = is_alone ? buffers.values.mine(worker) : buffers.values.whole();
    ActGroup* groups = is_alone ? buffers.groups.mine(worker) : buffers.groups.whole();
    const Range own = is_alone ? Range{0, rows()} : worker.share(rows());
    for (int64_t row = own.first; row < own.stop; ++row) {
        prepare_row(from, row, forms, values + row * forms.inputs, groups + row * num_groups);
    }
    if (!is_alone) worker.barrier();
    return {groups, size_t(num_groups), values, size_t(forms.inputs)};
}

void Pass::multiply_tiles(
    const Activations& x, const Linear& linear, Range tiles, float* y, int64_t ldy) const {
    multiply_rows(x, rows(), linear, tiles, y, ldy);
}

void Pass::multiply_rows(
    const Activations& x, int64_t num_rows, const Linear& linear, Range tiles, float* y, int64_t ldy) const {
    const Matrix& m = *linear.weight;
    kernels.matmul(m, tiles.first, tiles.stop, x, num_rows, y, ldy);
    if (linear.bias.empty()) return;
    const int64_t first = tiles.first * m.width;
    const int64_t count = std::min(tiles.stop * m.width, m.outputs) - first;
    for (int64_t row = 0; row < num_rows; ++row) {
        kernels.add(y + row * ldy, linear.bias.data() + first, count, y + row * ldy);
    }
}

void Pass::multiply(
    Worker& worker, const Activations& x, std::initializer_list<const Linear*> linears, float* y, int64_t ldy) const {
    int64_t total = 0;
    for (const Linear* linear : linears) total += linear->weight->num_tiles;
    const Range own = worker.share(total);
    int64_t passed = 0;
    for (const Linear* linear : linears) {
        const Matrix& m = *linear->weight;
        const int64_t first = std::max<int64_t>(own.first - passed, 0);
        const int64_t stop = std::min(own.stop - passed, m.num_tiles);
        if (first < stop) multiply_tiles(x, *linear, {first, stop}, y + first * m.width, ldy);
        passed += m.num_tiles;
        y += m.outputs;
    }
}

void Pass::project_tiles(
    Worker& worker, const float* x, const Norm* norm, const Linear& linear, Range tiles, float* y) const {
    const Activations prepared = prepare(worker, {x, norm}, {&linear});
    if (tiles.first >= tiles.stop) return;
    multiply_tiles(prepared, linear, tiles, y + tiles.first * linear.weight->width, linear.outputs());
}

void Pass::quantise_inner(Worker& worker, int64_t size) const {
    const Range own = worker.share(rows() * (size / kGroup));
    kernels.quantise(buffers.inner_values + own.first * kGroup, own.stop - own.first,
                     buffers.inner_groups.mine(worker) + own.first);
    buffers.inner_groups.publish(worker, own.first, own.stop - own.first);
}

void Pass::add_result(
    Worker& worker, const Activations& inner, const Linear& linear, const std::optional<Norm>& norm) const {
    if (norm) {
        add_normed(worker, inner, linear, *norm);
    } else {
        add_columns(worker, inner, linear);
    }
    worker.barrier();
}

void Pass::normalise(Worker& worker, const Norm& norm) const {
    const Range own = worker.share(rows());
    for (int64_t row = own.first; row < own.stop; ++row) {
        float* numbers = x(worker) + row * hidden_size_;
        kernels.rms_norm(numbers, norm.weight.data(), norm.eps, hidden_size_, numbers);
        buffers.x.publish(worker, row * hidden_size_, hidden_size_);
    }
}

void Pass::scale(Worker& worker, float factor) const {
    const Range own = worker.share(rows());
    for (int64_t row = own.first; row < own.stop; ++row) {
        float* numbers = x(worker) + row * hidden_size_;
        for (int64_t i = 0; i < hidden_size_; ++i) numbers[i] *= factor;
        buffers.x.publish(worker, row * hidden_size_, hidden_size_);
    }
    worker.barrier();
}

void Layer::run(Pass& pass, Worker& worker, const MixerStates& states) const {
    if (mixer != nullptr) mixer->run(pass, worker, states);
    for (const Channel* part : {channel.get(), second.get()}) {
        if (part != nullptr) part->run(pass, worker);
    }
    if (scale != 1.0f) pass.scale(worker, scale);
}

void Pass::add_normed(Worker& worker, const Activations& inner, const Linear& linear, const Norm& norm) const {
    const int64_t size = linear.outputs();
    multiply(worker, inner, {&linear}, buffers.results.whole(), size);
    worker.barrier();
    const Range own = worker.share(rows());
    for (int64_t row = own.first; row < own.stop; ++row) {
        float* result = buffers.results.whole() + row * size;
        float* x_row = x(worker) + row * size;
        kernels.rms_norm(result, norm.weight.data(), norm.eps, size, result);
        kernels.add(x_row, result, size, x_row);
        buffers.x.publish(worker, row * size, size);
    }
}

void Pass::add_columns(Worker& worker, const Activations& inner, const Linear& linear) const {
    const int64_t size = linear.outputs(), width = linear.weight->width;
    const Range own = worker.share(linear.weight->num_tiles);
    const int64_t first = own.first * width, count = std::min(own.stop * width, size) - first;
    if (count <= 0) return;
    float* results = buffers.results.mine(worker);  // (rows, count)
    multiply_tiles(inner, linear, own, results, count);
    for (int64_t row = 0; row < rows(); ++row) {
        float* x_part = x(worker) + row * size + first;
        kernels.add(x_part, results + row * count, count, x_part);
        buffers.x.publish(worker, row * size + first, count);
    }
}

}  // namespace headlong
