#include "pass.hpp"

#include <algorithm>
#include <cstring>

#include "draft.hpp"
#include "merge_tree.hpp"

namespace headlong {

Pass::Needs Pass::needs(std::initializer_list<const Linear*> readers) const {
    Needs needs;
    for (const Linear* reader : readers) {
        needs.inputs = std::max(needs.inputs, reader->inputs());
        (reader->weight->is_quantised() ? needs.groups : needs.values) = true;
    }
    return needs;
}

void Pass::reserve(const Needs& needs, int64_t inner_size) {
    Workspace& work = engine_.workspace;
    const int64_t most_alone = team_.most_rows_alone(rows());
    const int64_t num_groups = ceil_div(needs.inputs, kGroup), num_inner = ceil_div(inner_size, kGroup);
    values_ = team_.make_private<float>(work.values, most_alone * needs.inputs, rows() * needs.inputs);
    groups_ = team_.make_private<ActGroup>(work.groups, most_alone * num_groups, rows() * num_groups);
    x_ = team_.share(work.x, rows() * hidden_size_, input_.x);
    inner_values_ = work.inner_values.reserve<float>(rows() * inner_size);
    inner_groups_ = team_.share<ActGroup>(work.inner_groups, rows() * num_inner);
}

Pass::Pass(Engine& engine, const PassInput& input, const Linear& linear)
    : engine_(engine), k_(engine.kernels), input_(input), team_(engine.pool) {
    reserve(needs({&linear}), 0);
}

Pass::Pass(Engine& engine, const PassInput& input, const Attention& block)
    : engine_(engine), k_(engine.kernels), input_(input), team_(engine.pool), hidden_size_(block.hidden_size()) {
    reserve(needs({&block.key, &block.value}), 0);
    const int num_buffers = is_short() ? team_.num_workers() : 1;
    projected_ = {engine_.workspace.projected, rows() * 2 * block.key_size(), num_buffers};
}

Pass::Pass(
    Engine& engine, const PassInput& input, const TeamScratch& team, const std::vector<Layer>& layers,
    const std::vector<const Linear*>& others)
    : engine_(engine), k_(engine.kernels), input_(input), team_(team) {
    Needs all;
    for (const Linear* other : others) all.inputs = std::max(all.inputs, other->inputs());
    int64_t inner = 0, projected = 0, queries = 0;
    for (const Layer& layer : layers) {
        if (layer.attention != nullptr) {
            const Attention& block = *layer.attention;
            all.inputs = std::max(all.inputs, block.query.inputs());
            inner = std::max(inner, block.query_size());
            queries = std::max<int64_t>(queries, block.num_heads * Query::bytes(block.head_dim));
            projected = std::max(projected, block.query_size() + 2 * block.key_size());
            hidden_size_ = std::max(hidden_size_, block.hidden_size());
            bytes_per_cut_ = std::max<int64_t>(bytes_per_cut_, cut_bytes(block));
        }
        if (layer.mlp != nullptr) {
            all.inputs = std::max(all.inputs, layer.mlp->gate.inputs());
            inner = std::max(inner, layer.mlp->down.inputs());
            hidden_size_ = std::max(hidden_size_, layer.mlp->hidden_size());
        }
    }
    reserve(all, inner);
    Workspace& work = engine_.workspace;
    const int64_t num_workers = team_.num_workers();
    queries_ = team_.share<uint8_t>(work.queries, rows() * queries);
    partials_ = team_.share<uint8_t>(work.partials, cut_place(team_.num_workers(), {}));
    projected_ = {work.projected, rows() * projected, is_short() ? num_workers : 1};
    const int64_t own_columns = ceil_div(ceil_div(hidden_size_, k_.tile_width), num_workers) * k_.tile_width;
    results_ = team_.make_private<float>(work.results, rows() * own_columns, rows() * hidden_size_);
    tiles_ = team_.make_private<float>(work.tiles, rows() * 2 * kMlpUnit);
}

// The most bytes that a worker's part of one item can take.
size_t Pass::cut_bytes(const Attention& block) const {
    const int64_t heads_per_row = block.heads_per_kv();
    const size_t bytes = Partial::bytes(KVLayer::padded(block.head_dim, k_.width));
    size_t most = 0;
    for (const Span& span : input_.spans) {
        const int64_t num_queries = AttendShares::rows_each(span, heads_per_row) * heads_per_row;
        const int64_t num_chunks = ceil_div(span.first_position + span.num_rows, kChunk);
        most = std::max(most, most_waiting(num_chunks) * num_queries * bytes);
    }
    return most;
}

void Pass::enter_row(const Entry& entry, int64_t row, const Needs& needs, float* values, ActGroup* groups) const {
    const int64_t size = entry.beside == nullptr ? needs.inputs : needs.inputs / 2;
    const float* x = entry.x + row * size;
    const float* ready = values;
    if (entry.beside != nullptr) {
        k_.rms_norm(entry.beside + row * size, entry.beside_norm->weight.data(), entry.beside_norm->eps, size, values);
        k_.rms_norm(x, entry.norm->weight.data(), entry.norm->eps, size, values + size);
    } else if (entry.norm != nullptr) {
        k_.rms_norm(x, entry.norm->weight.data(), entry.norm->eps, size, values);
    } else {
        ready = x;
        if (needs.values) std::memcpy(values, x, size * sizeof(float));
    }
    if (needs.groups) k_.quantise(ready, needs.inputs / kGroup, groups);
}

Activations Pass::enter(Worker& worker, const Entry& entry, std::initializer_list<const Linear*> readers) {
    const Needs needs = this->needs(readers);
    const int64_t num_groups = needs.inputs / kGroup;
    const bool is_alone = team_.computes_rows_alone(worker, rows());
    float* values = is_alone ? values_.mine(worker) : values_.whole();
    ActGroup* groups = is_alone ? groups_.mine(worker) : groups_.whole();
    const Range own = is_alone ? Range{0, rows()} : worker.share(rows());
    for (int64_t row = own.first; row < own.stop; ++row) {
        enter_row(entry, row, needs, values + row * needs.inputs, groups + row * num_groups);
    }
    if (!is_alone) worker.barrier();
    return {groups, size_t(num_groups), values, size_t(needs.inputs)};
}

void Pass::multiply_tiles(
    const Activations& x, const Linear& linear, int64_t first_tile, int64_t stop_tile, float* y, int64_t ldy) const {
    const Matrix& m = *linear.weight;
    k_.matmul(m, first_tile, stop_tile, x, rows(), y, ldy);
    if (linear.bias.empty()) return;
    const int64_t first = first_tile * m.width;
    const int64_t count = std::min(stop_tile * m.width, m.outputs) - first;
    for (int64_t row = 0; row < rows(); ++row) {
        k_.add(y + row * ldy, linear.bias.data() + first, count, y + row * ldy);
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
        if (first < stop) multiply_tiles(x, *linear, first, stop, y + first * m.width, ldy);
        passed += m.num_tiles;
        y += m.outputs;
    }
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

void Pass::add_normed(Worker& worker, const Activations& inner, const Linear& linear, const Norm& norm) const {
    const int64_t size = linear.outputs();
    multiply(worker, inner, {&linear}, results_.whole(), size);
    worker.barrier();
    const Range own = worker.share(rows());
    for (int64_t row = own.first; row < own.stop; ++row) {
        float* result = results_.whole() + row * size;
        float* x_row = x(worker) + row * size;
        k_.rms_norm(result, norm.weight.data(), norm.eps, size, result);
        k_.add(x_row, result, size, x_row);
        x_.publish(worker, row * size, size);
    }
}

void Pass::add_columns(Worker& worker, const Activations& inner, const Linear& linear) const {
    const int64_t size = linear.outputs(), width = linear.weight->width;
    const Range own = worker.share(linear.weight->num_tiles);
    const int64_t first = own.first * width, count = std::min(own.stop * width, size) - first;
    if (count <= 0) return;
    float* results = results_.mine(worker);  // (rows, count)
    multiply_tiles(inner, linear, own.first, own.stop, results, count);
    for (int64_t row = 0; row < rows(); ++row) {
        float* x_part = x(worker) + row * size + first;
        k_.add(x_part, results + row * count, count, x_part);
        x_.publish(worker, row * size + first, count);
    }
}

void Pass::gated_mlp(Worker& worker, const GatedMlp& block) {
    const Activations entered = enter(worker, {x(worker), &block.norm}, {&block.gate, &block.up});
    const int64_t inner = block.down.inputs();
    const int64_t num_groups = inner / kGroup;
    const bool is_quantised = block.down.weight->is_quantised();
    const int64_t tiles = kMlpUnit / k_.tile_width;
    float* gates = tiles_.mine(worker);
    float* ups = gates + rows() * kMlpUnit;
    const Range own = worker.share(ceil_div(inner, kMlpUnit));
    for (int64_t unit = own.first; unit < own.stop; ++unit) {
        const int64_t first = unit * kMlpUnit, count = std::min(kMlpUnit, inner - first);
        const int64_t stop_tile = std::min((unit + 1) * tiles, block.gate.weight->num_tiles);
        multiply_tiles(entered, block.gate, unit * tiles, stop_tile, gates, kMlpUnit);
        multiply_tiles(entered, block.up, unit * tiles, stop_tile, ups, kMlpUnit);
        for (int64_t row = 0; row < rows(); ++row) {
            float* gate = gates + row * kMlpUnit;
            float* out = is_quantised ? gate : inner_values_ + row * inner + first;
            k_.activate(gate, ups + row * kMlpUnit, block.is_gelu, count, out);
            if (is_quantised) {
                const int64_t group = row * num_groups + first / kGroup;
                k_.quantise(out, count / kGroup, inner_groups_.mine(worker) + group);
                inner_groups_.publish(worker, group, count / kGroup);
            }
        }
    }
    worker.barrier();
    const Activations activated{inner_groups_.mine(worker), size_t(num_groups), inner_values_, size_t(inner)};
    add_result(worker, activated, block.down, block.output_norm);
}

void Pass::project(Worker& worker, const float* x, const Norm* norm, const Linear& linear, float* y) {
    project_tiles(worker, x, norm, linear, worker.share(linear.weight->num_tiles), y);
}

void Pass::project_tiles(
    Worker& worker, const float* x, const Norm* norm, const Linear& linear, Range tiles, float* y) {
    const Activations entered = enter(worker, {x, norm}, {&linear});
    if (tiles.first >= tiles.stop) return;
    multiply_tiles(entered, linear, tiles.first, tiles.stop, y + tiles.first * linear.weight->width, linear.outputs());
}

void Pass::fuse(Worker& worker, const float* states, const float* embedded, const Fusion& fusion, float* y) {
    const Entry embedding_first{states, &fusion.state_norm, embedded, &fusion.embedding_norm};
    const Entry state_first{embedded, &fusion.embedding_norm, states, &fusion.state_norm};
    const Activations entered = enter(worker, fusion.is_state_first ? state_first : embedding_first, {&fusion.fc});
    multiply(worker, entered, {&fusion.fc}, y, fusion.fc.outputs());
}

}  // namespace headlong
