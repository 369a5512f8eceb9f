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

void Pass::make_room(const Needs& needs, int64_t inner_size) {
    // Few rows are prepared by every member for itself, hence the factor. Rows may become fewer.
    engine_.workspace.begin(rows());
    const int64_t num_threads = engine_.pool.num_threads();
    const int64_t copied = std::max(rows(), num_threads * std::min(rows(), num_threads - 1));
    Workspace& work = engine_.workspace;
    values_ = work.values.room<float>(copied * needs.inputs);
    groups_ = work.groups.room<ActGroup>(copied * ceil_div(needs.inputs, kGroup));
    inner_values_ = work.inner_values.room<float>(rows() * inner_size);
    inner_groups_ = work.inner_groups.room<ActGroup>(rows() * ceil_div(inner_size, kGroup));
}

Pass::Pass(Engine& engine, const PassInput& input, const Linear& linear)
    : engine_(engine), k_(engine.kernels), input_(input) {
    make_room(needs({&linear}), 0);
}

Pass::Pass(Engine& engine, const PassInput& input, const Attention& block)
    : engine_(engine), k_(engine.kernels), input_(input) {
    make_room(needs({&block.key, &block.value}), 0);
    projected_ = engine_.workspace.projected.room<float>(rows() * 2 * block.key_size());
}

Pass::Pass(
    Engine& engine, const PassInput& input, const std::vector<Layer>& layers,
    const std::vector<const Linear*>& others)
    : engine_(engine), k_(engine.kernels), input_(input) {
    Needs all;
    for (const Linear* other : others) all.inputs = std::max(all.inputs, other->inputs());
    int64_t inner = 0, projected = 0, queries = 0, heads = 0, hidden = 0;
    for (const Layer& layer : layers) {
        if (layer.attention != nullptr) {
            const Attention& block = *layer.attention;
            all.inputs = std::max(all.inputs, block.query.inputs());
            inner = std::max(inner, block.query_size());
            queries = std::max(queries, block.query_size());
            heads = std::max<int64_t>(heads, block.num_heads);
            projected = std::max(projected, block.query_size() + 2 * block.key_size());
            hidden = std::max(hidden, block.hidden_size());
            bytes_per_cut_ = std::max(bytes_per_cut_, cut_bytes(block));
        }
        if (layer.mlp != nullptr) {
            all.inputs = std::max(all.inputs, layer.mlp->gate.inputs());
            inner = std::max(inner, layer.mlp->down.inputs());
            hidden = std::max(hidden, layer.mlp->hidden_size());
        }
    }
    make_room(all, inner);
    Workspace& work = engine_.workspace;
    projected_ = work.projected.room<float>(rows() * projected);
    queries_ = work.queries.room<int16_t>(rows() * queries);
    query_scales_ = work.query_scales.room<float>(rows() * heads);
    results_ = work.results.room<float>(rows() * hidden);
    tiles_ = work.tiles.room<float>(engine_.pool.num_threads() * rows() * 2 * kMlpUnit);
    partials_ = work.partials.room<uint8_t>(engine_.pool.num_threads() * 2 * bytes_per_cut_);
}

// The most bytes that a member's part of one item can take.
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

Activations Pass::enter(Member& me, const Entry& entry, std::initializer_list<const Linear*> readers) {
    const Needs needs = this->needs(readers);
    const int64_t num_groups = needs.inputs / kGroup;
    const bool is_private = rows() < me.count;
    const int64_t skipped = is_private ? me.index * rows() : 0;
    float* values = values_ + skipped * needs.inputs;
    ActGroup* groups = groups_ + skipped * num_groups;
    const Member::Range own = is_private ? Member::Range{0, rows()} : me.share(rows());
    for (int64_t row = own.first; row < own.stop; ++row) {
        enter_row(entry, row, needs, values + row * needs.inputs, groups + row * num_groups);
    }
    if (!is_private) me.barrier();
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
    Member& me, const Activations& x, std::initializer_list<const Linear*> linears, float* y, int64_t ldy) const {
    int64_t total = 0;
    for (const Linear* linear : linears) total += linear->weight->num_tiles;
    const Member::Range own = me.share(total);
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
    Member& me, const Activations& x, const Linear& linear, const std::optional<Norm>& norm) const {
    const int64_t size = linear.outputs();
    multiply(me, x, {&linear}, results_, size);
    if (norm) {
        me.barrier();
        const Member::Range own = me.share(rows());
        for (int64_t row = own.first; row < own.stop; ++row) {
            float* result = results_ + row * size;
            k_.rms_norm(result, norm->weight.data(), norm->eps, size, result);
            k_.add(input_.x + row * size, result, size, input_.x + row * size);
        }
    } else {
        const Member::Range own = me.share(linear.weight->num_tiles);
        const int64_t first = own.first * linear.weight->width;
        const int64_t stop = std::min(own.stop * linear.weight->width, size);
        for (int64_t row = 0; row < rows() && first < stop; ++row) {
            float* x_part = input_.x + row * size + first;
            k_.add(x_part, results_ + row * size + first, stop - first, x_part);
        }
    }
    me.barrier();
}

void Pass::gated_mlp(Member& me, const GatedMlp& block) {
    const Activations x = enter(me, {input_.x, &block.norm}, {&block.gate, &block.up});
    const int64_t inner = block.down.inputs();
    const int64_t num_groups = inner / kGroup;
    const bool is_quantised = block.down.weight->is_quantised();
    const int64_t tiles = kMlpUnit / k_.tile_width;
    float* gates = tiles_ + me.index * rows() * 2 * kMlpUnit;
    float* ups = gates + rows() * kMlpUnit;
    const Member::Range own = me.share(ceil_div(inner, kMlpUnit));
    for (int64_t unit = own.first; unit < own.stop; ++unit) {
        const int64_t first = unit * kMlpUnit, count = std::min(kMlpUnit, inner - first);
        const int64_t stop_tile = std::min((unit + 1) * tiles, block.gate.weight->num_tiles);
        multiply_tiles(x, block.gate, unit * tiles, stop_tile, gates, kMlpUnit);
        multiply_tiles(x, block.up, unit * tiles, stop_tile, ups, kMlpUnit);
        for (int64_t row = 0; row < rows(); ++row) {
            float* gate = gates + row * kMlpUnit;
            float* out = is_quantised ? gate : inner_values_ + row * inner + first;
            k_.activate(gate, ups + row * kMlpUnit, block.is_gelu, count, out);
            if (is_quantised) {
                k_.quantise(out, count / kGroup, inner_groups_ + row * num_groups + first / kGroup);
            }
        }
    }
    me.barrier();
    add_result(me, {inner_groups_, size_t(num_groups), inner_values_, size_t(inner)}, block.down, block.output_norm);
}

void Pass::project(Member& me, const float* x, const Norm* norm, const Linear& linear, float* y) {
    project_tiles(me, x, norm, linear, me.share(linear.weight->num_tiles), y);
}

void Pass::project_tiles(
    Member& me, const float* x, const Norm* norm, const Linear& linear, Member::Range tiles, float* y) {
    const Activations entered = enter(me, {x, norm}, {&linear});
    if (tiles.first >= tiles.stop) return;
    multiply_tiles(entered, linear, tiles.first, tiles.stop, y + tiles.first * linear.weight->width, linear.outputs());
}

void Pass::fuse(Member& me, const float* states, const float* embedded, const Fusion& fusion, float* y) {
    const Entry embedding_first{states, &fusion.state_norm, embedded, &fusion.embedding_norm};
    const Entry state_first{embedded, &fusion.embedding_norm, states, &fusion.state_norm};
    const Activations entered = enter(me, fusion.is_state_first ? state_first : embedding_first, {&fusion.fc});
    multiply(me, entered, {&fusion.fc}, y, fusion.fc.outputs());
}

}  // namespace headlong
