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
    engine_.workspace.begin(rows());
    Workspace& work = engine_.workspace;
    const int64_t num_threads = engine_.pool.num_threads();
    // Few rows are prepared by every member for itself; and rows may become fewer.
    const int64_t most_own = has_copies_ ? rows() : std::min(rows(), num_threads - 1);
    const int64_t num_groups = ceil_div(needs.inputs, kGroup), num_inner = ceil_div(inner_size, kGroup);
    values_ = {work.values, most_own * needs.inputs, num_threads, rows() * needs.inputs};
    groups_ = {work.groups, most_own * num_groups, num_threads, rows() * num_groups};
    inner_values_ = work.inner_values.room<float>(rows() * inner_size);
    inner_groups_ = {work.inner_groups, rows() * num_inner, num_copies()};
}

Pass::Pass(Engine& engine, const PassInput& input, const Linear& linear)
    : engine_(engine), k_(engine.kernels), input_(input) {
    make_room(needs({&linear}), 0);
}

Pass::Pass(Engine& engine, const PassInput& input, const Attention& block)
    : engine_(engine), k_(engine.kernels), input_(input) {
    make_room(needs({&block.key, &block.value}), 0);
    const int num_rooms = is_short() ? engine_.pool.num_threads() : 1;
    projected_ = {engine_.workspace.projected, rows() * 2 * block.key_size(), num_rooms};
}

Pass::Pass(
    Engine& engine, const PassInput& input, const std::vector<Layer>& layers,
    const std::vector<const Linear*>& others, Sharing sharing)
    : engine_(engine), k_(engine.kernels), input_(input) {
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
    has_copies_ = sharing == Sharing::copies_when_far && can_copy();
    make_room(all, inner);
    Workspace& work = engine_.workspace;
    const int64_t num_threads = engine_.pool.num_threads();
    if (has_copies_) x_ = {work.x, rows() * hidden_size_, num_threads};
    queries_ = {work.queries, rows() * queries, num_copies()};
    partials_ = {work.partials, cut_place(static_cast<int>(num_threads), {}), num_copies()};
    projected_ = {work.projected, rows() * projected, is_short() ? num_threads : 1};
    const int64_t own_columns = ceil_div(ceil_div(hidden_size_, k_.tile_width), num_threads) * k_.tile_width;
    results_ = {work.results, rows() * own_columns, num_threads, rows() * hidden_size_};
    tiles_ = {work.tiles, rows() * 2 * kMlpUnit, num_threads};
}

// Copies pay from two rows on, though every member then prepares all rows for itself. Rows must be whole lines.
bool Pass::can_copy() const {
    return engine_.pool.is_far_apart() && rows() > 1 && hidden_size_ % 16 == 0;
}

// Nobody sends rows to another before a barrier: they change at the end of a block, and that lies behind one.
void Pass::begin(Member& me) const {
    if (has_copies_) std::memcpy(x(me), input_.x, rows() * hidden_size_ * sizeof(float));
}

void Pass::end(Member& me) const {
    if (!has_copies_) return;
    const Member::Range own = me.share(rows() * hidden_size_);
    std::memcpy(input_.x + own.first, x(me) + own.first, (own.stop - own.first) * sizeof(float));
}

void Pass::meet(Member& me) const {
    if (has_copies_) finish_stores();
    me.barrier();
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
    const bool is_private = rows() < me.count || has_copies_;
    float* values = is_private ? values_.of(me) : values_.in_common();
    ActGroup* groups = is_private ? groups_.of(me) : groups_.in_common();
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
    Member& me, const Activations& inner, const Linear& linear, const std::optional<Norm>& norm) const {
    if (norm) {
        add_normed(me, inner, linear, *norm);
    } else {
        add_columns(me, inner, linear);
    }
    meet(me);
}

void Pass::add_normed(Member& me, const Activations& inner, const Linear& linear, const Norm& norm) const {
    const int64_t size = linear.outputs();
    multiply(me, inner, {&linear}, results_.in_common(), size);
    me.barrier();
    const Member::Range own = me.share(rows());
    for (int64_t row = own.first; row < own.stop; ++row) {
        float* result = results_.in_common() + row * size;
        float* x_row = x(me) + row * size;
        k_.rms_norm(result, norm.weight.data(), norm.eps, size, result);
        k_.add(x_row, result, size, x_row);
        x_.send(me, row * size, size);
    }
}

void Pass::add_columns(Member& me, const Activations& inner, const Linear& linear) const {
    const int64_t size = linear.outputs(), width = linear.weight->width;
    const Member::Range own = me.share(linear.weight->num_tiles);
    const int64_t first = own.first * width, count = std::min(own.stop * width, size) - first;
    if (count <= 0) return;
    float* results = results_.of(me);  // (rows, count)
    multiply_tiles(inner, linear, own.first, own.stop, results, count);
    for (int64_t row = 0; row < rows(); ++row) {
        float* x_part = x(me) + row * size + first;
        k_.add(x_part, results + row * count, count, x_part);
        x_.send(me, row * size + first, count);
    }
}

void Pass::gated_mlp(Member& me, const GatedMlp& block) {
    const Activations entered = enter(me, {x(me), &block.norm}, {&block.gate, &block.up});
    const int64_t inner = block.down.inputs();
    const int64_t num_groups = inner / kGroup;
    const bool is_quantised = block.down.weight->is_quantised();
    const int64_t tiles = kMlpUnit / k_.tile_width;
    float* gates = tiles_.of(me);
    float* ups = gates + rows() * kMlpUnit;
    const Member::Range own = me.share(ceil_div(inner, kMlpUnit));
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
                k_.quantise(out, count / kGroup, inner_groups_.of(me) + group);
                inner_groups_.send(me, group, count / kGroup);
            }
        }
    }
    meet(me);
    const Activations activated{inner_groups_.of(me), size_t(num_groups), inner_values_, size_t(inner)};
    add_result(me, activated, block.down, block.output_norm);
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
