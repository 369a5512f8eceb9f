// Mixtures of experts in a pass.
//
// Every worker knows which rows go to which expert. First all chosen experts' units of what `down` reads are shared
// among the workers, then each worker computes its own columns of all sums, so that no sum is cut. The rows of an
// expert are multiplied together: its weights are read once, whatever the number of rows.
#include <algorithm>
#include <cstring>

#include "pass.hpp"

namespace headlong {

// Which rows go to which expert; in scratch of one worker. Slots are sorted by expert, then by row.
struct ExpertPlan {
    struct Slot {
        int64_t row;
        float share;
    };

    ExpertPlan(uint8_t* bytes, int64_t num_experts)
        : scores(reinterpret_cast<float*>(bytes)), heights(scores + num_experts),
          starts(reinterpret_cast<int64_t*>(heights + num_experts)),
          slots(reinterpret_cast<Slot*>(starts + num_experts + 1)), num_experts(num_experts) {}
    static int64_t bytes(int64_t num_experts, int64_t num_slots) {
        return 2 * num_experts * sizeof(float) + (num_experts + 1) * sizeof(int64_t) + num_slots * sizeof(Slot);
    }

    float* const scores;     // scratch of Router::choose
    float* const heights;
    int64_t* const starts;   // of the slots of every expert, and the end
    Slot* const slots;
    const int64_t num_experts;

    void sort(const Choice* choices, int64_t num_rows, int64_t num_chosen) const {
        std::fill(starts, starts + num_experts + 1, 0);
        for (int64_t i = 0; i < num_rows * num_chosen; ++i) ++starts[choices[i].expert + 1];
        for (int64_t e = 0; e < num_experts; ++e) starts[e + 1] += starts[e];
        for (int64_t i = 0; i < num_rows * num_chosen; ++i) {  // moves every start to the end
            slots[starts[choices[i].expert]++] = {i / num_chosen, choices[i].share};
        }
        for (int64_t e = num_experts; e > 0; --e) starts[e] = starts[e - 1];
        starts[0] = 0;
    }
};

namespace {

constexpr int64_t kReadingCost = 4;     // reading weights costs about as much as multiplying them with so many rows

// The rows of some activations that go to one expert, side by side.
Activations gather(const Activations& x, const ExpertPlan::Slot* slots, int64_t count, ActGroup* groups, float* values) {
    if (count == 1) {
        const int64_t row = slots[0].row;
        return {x.groups + row * x.groups_per_row, x.groups_per_row, x.values + row * x.values_per_row,
                x.values_per_row};
    }
    for (int64_t i = 0; i < count; ++i) {
        const int64_t row = slots[i].row;
        if (groups != nullptr) {
            std::memcpy(groups + i * x.groups_per_row, x.groups + row * x.groups_per_row,
                        x.groups_per_row * sizeof(ActGroup));
        }
        if (values != nullptr) {
            std::memcpy(values + i * x.values_per_row, x.values + row * x.values_per_row,
                        x.values_per_row * sizeof(float));
        }
    }
    return {groups, x.groups_per_row, values, x.values_per_row};
}

// The part of `count` units, each of a cost, that a worker takes of a range of costs.
Range units_within(Range costs, int64_t before, int64_t cost, int64_t count) {
    const auto first_at = [&](int64_t bound) {
        return std::clamp<int64_t>(ceil_div(std::max<int64_t>(bound - before, 0), cost), 0, count);
    };
    return {first_at(costs.first), first_at(costs.stop)};
}

}  // namespace

ScratchNeeds Experts::needs(int64_t num_rows, const Kernels& kernels) const {
    const Mlp& expert = experts.front();
    const auto num_experts = static_cast<int64_t>(experts.size());
    const int64_t num_slots = num_rows * router.num_chosen, latent = reduce ? expert_size() : 0;
    const int64_t results = ends_with_norms() ? 2 * hidden_size() : 0;
    ScratchNeeds needs{.hidden = hidden_size(), .inputs = std::max(hidden_size(), latent),
                       .inner = router.num_chosen * expert.inner(),
                       .exchanged = std::max({num_experts + 1 + 2 * latent, results}),
                       .choices = router.num_chosen, .plan_bytes = ExpertPlan::bytes(num_experts, num_slots),
                       .sums = std::max(hidden_size(), latent), .gathered = expert.up.inputs()};
    needs.include(expert.needs());
    if (shared != nullptr) {
        needs.include(shared->needs(num_rows, kernels));
        needs.inner = router.num_chosen * expert.inner() + shared->mlp.inner();
    }
    return needs;
}

void Experts::run(Pass& pass, Worker& worker) const {
    const int64_t rows = pass.rows(), width = expert_size();
    const auto num_experts = static_cast<int64_t>(experts.size());
    float* logits = pass.buffers.exchanged;                       // (rows, experts)
    float* gates = logits + rows * num_experts;                   // (rows), of the shared part
    float* latent = gates + rows;                                 // (rows, width)
    float* latent_sums = latent + rows * (reduce ? width : 0);    // (rows, width)
    const ExpertPlan plan(pass.buffers.plans.mine(worker), num_experts);
    const float* x = pass.x(worker);

    if (shared != nullptr && !shares_norm) {
        const Mlp& mlp = shared->mlp;
        run_shared_inner(pass, worker, pass.prepare(worker, {x, &shared->norm}, {&mlp.first(), &mlp.up}));
        worker.barrier();
    }
    if (router.norm) {
        pass.multiply(worker, pass.prepare(worker, {x, &*router.norm}, {&router.linear}), {&router.linear}, logits,
                      num_experts);
        worker.barrier();
    }
    const bool is_shared_ready = shared == nullptr || !shares_norm;
    const Linear& first = reduce ? *reduce : experts.front().first();
    const Linear& second = reduce ? *reduce : experts.front().up;
    const Linear& third = is_shared_ready ? first : shared->mlp.first();
    const Linear& fourth = is_shared_ready ? first : shared->mlp.up;
    const Linear& fifth = router.norm ? first : router.linear;
    const Activations normed = pass.prepare(
        worker, {x, &norm}, {&first, &second, &third, &fourth, &fifth, shared_gate ? &*shared_gate : &first});
    if (!router.norm) pass.multiply(worker, normed, {&router.linear}, logits, num_experts);
    if (shared_gate) pass.multiply(worker, normed, {&*shared_gate}, gates, 1);
    if (reduce) {
        pass.multiply(worker, normed, {&*reduce}, latent, width);
        if (!is_shared_ready) run_shared_inner(pass, worker, normed);
    }
    worker.barrier();
    choose_all(pass, worker, logits, plan);
    const Activations inputs =
        reduce ? pass.prepare(worker, {latent}, {&experts.front().first(), &experts.front().up}) : normed;
    run_inner(pass, worker, inputs, is_shared_ready || reduce ? nullptr : &normed, plan);
    worker.barrier();

    const Range tiles = worker.share(ceil_div(hidden_size(), pass.kernels.tile_width));
    float* sums = pass.buffers.sums.mine(worker);
    if (reduce) {
        const int64_t tile = pass.kernels.tile_width;
        const Range own = worker.share(ceil_div(width, tile));
        const int64_t count = std::min(own.stop * tile, width) - own.first * tile;
        sum_experts(pass, worker, plan, own, sums);
        for (int64_t row = 0; row < rows && count > 0; ++row) {
            std::memcpy(latent_sums + row * width + own.first * tile, sums + row * count, count * sizeof(float));
        }
        worker.barrier();
        const Activations summed = pass.prepare(worker, {latent_sums}, {&*expand});
        const int64_t columns = std::min(tiles.stop * tile, hidden_size()) - tiles.first * tile;
        if (columns > 0) pass.multiply_tiles(summed, *expand, tiles, sums, columns);
    } else {
        sum_experts(pass, worker, plan, tiles, sums);
    }
    if (ends_with_norms()) {
        add_normed(pass, worker, tiles, sums);
    } else {
        add_columns(pass, worker, tiles, sums);
    }
    worker.barrier();
}

// Few rows are looked at by every worker for itself, which costs less than to wait for the others.
void Experts::choose_all(Pass& pass, Worker& worker, const float* logits, const ExpertPlan& plan) const {
    Choice* choices = pass.is_short() ? pass.buffers.choices.mine(worker) : pass.buffers.choices.whole();
    const Range own = pass.is_short() ? Range{0, pass.rows()} : worker.share(pass.rows());
    for (int64_t row = own.first; row < own.stop; ++row) {
        router.choose(logits + row * plan.num_experts, plan.scores, plan.heights, choices + row * router.num_chosen);
    }
    if (!pass.is_short()) worker.barrier();
    plan.sort(choices, pass.rows(), router.num_chosen);
}

void Experts::run_shared_inner(Pass& pass, Worker& worker, const Activations& x) const {
    const Range own = worker.share(shared->mlp.num_units());
    const int64_t behind = pass.rows() * router.num_chosen * experts.front().inner();
    shared->mlp.run_inner(pass, worker, x, pass.rows(), own.first, own.stop, behind);
}

// Workers take equal shares of all units, the shared part's included, by what a unit costs for its rows.
void Experts::run_inner(
    Pass& pass, Worker& worker, const Activations& x, const Activations* shared_x, const ExpertPlan& plan) const {
    const int64_t inner = experts.front().inner(), num_units = experts.front().num_units(), rows = pass.rows();
    const int64_t num_slots = plan.starts[plan.num_experts];
    int64_t total = num_units * num_slots;
    for (int64_t e = 0; e < plan.num_experts; ++e) {
        if (plan.starts[e] < plan.starts[e + 1]) total += num_units * kReadingCost;
    }
    if (shared_x != nullptr) total += shared->mlp.num_units() * (kReadingCost + rows);
    const Range costs = worker.share(total);
    const bool has_groups = experts.front().up.weight->is_quantised() || experts.front().first().weight->is_quantised();
    const bool has_values = !experts.front().up.weight->is_quantised() || !experts.front().first().weight->is_quantised();
    int64_t before = 0;
    for (int64_t e = 0; e < plan.num_experts; ++e) {
        const int64_t start = plan.starts[e], count = plan.starts[e + 1] - start;
        if (count == 0) continue;
        const Range own = units_within(costs, before, kReadingCost + count, num_units);
        before += num_units * (kReadingCost + count);
        if (own.first == own.stop) continue;
        const Activations gathered =
            gather(x, plan.slots + start, count, has_groups ? pass.buffers.gathered_groups.mine(worker) : nullptr,
                   has_values ? pass.buffers.gathered_values.mine(worker) : nullptr);
        experts[e].run_inner(pass, worker, gathered, count, own.first, own.stop, start * inner);
    }
    if (shared_x == nullptr) return;
    const Range own = units_within(costs, before, kReadingCost + rows, shared->mlp.num_units());
    shared->mlp.run_inner(pass, worker, *shared_x, rows, own.first, own.stop, num_slots * inner);
}

// sums = the experts' results for these columns, times their shares, expert after expert.
void Experts::sum_experts(Pass& pass, Worker& worker, const ExpertPlan& plan, Range tiles, float* sums) const {
    const Mlp& any = experts.front();
    const int64_t inner = any.inner(), width = pass.kernels.tile_width;
    const int64_t count = std::min(tiles.stop * width, any.down.outputs()) - tiles.first * width;
    if (count <= 0) return;
    std::memset(sums, 0, pass.rows() * count * sizeof(float));
    float* results = pass.buffers.results.mine(worker);
    const Activations all = pass.inner(worker, inner);
    for (int64_t e = 0; e < plan.num_experts; ++e) {
        const int64_t start = plan.starts[e], num_rows = plan.starts[e + 1] - start;
        if (num_rows == 0) continue;
        const Activations own{all.groups + start * all.groups_per_row, all.groups_per_row,
                              all.values + start * all.values_per_row, all.values_per_row};
        pass.multiply_rows(own, num_rows, experts[e].down, tiles, results, count);
        for (int64_t i = 0; i < num_rows; ++i) {
            const ExpertPlan::Slot& slot = plan.slots[start + i];
            pass.kernels.add_scaled(results + i * count, slot.share, count, sums + slot.row * count);
        }
    }
}

// x += sums + the shared part, column by column.
void Experts::add_columns(Pass& pass, Worker& worker, Range tiles, float* sums) const {
    const int64_t size = hidden_size(), width = pass.kernels.tile_width, rows = pass.rows();
    const int64_t first = tiles.first * width, count = std::min(tiles.stop * width, size) - first;
    if (count <= 0) return;
    const float* gates = pass.buffers.exchanged + rows * int64_t(experts.size());
    float* results = pass.buffers.results.mine(worker);
    if (shared != nullptr) pass.multiply_tiles(shared_inner(pass, worker), shared->mlp.down, tiles, results, count);
    for (int64_t row = 0; row < rows; ++row) {
        float* sum = sums + row * count;
        if (shared != nullptr) {
            const float share = shared_gate ? sigmoid(gates[row]) : 1.0f;
            pass.kernels.add_scaled(results + row * count, share, count, sum);
        }
        float* x_part = pass.x(worker) + row * size + first;
        pass.kernels.add(x_part, sum, count, x_part);
        pass.buffers.x.publish(worker, row * size + first, count);
    }
}

// x += output_norm(sum_norm(sums) + the shared part), which takes whole rows.
void Experts::add_normed(Pass& pass, Worker& worker, Range tiles, const float* sums) const {
    const Kernels& kernels = pass.kernels;
    const int64_t size = hidden_size(), width = kernels.tile_width, rows = pass.rows();
    const int64_t first = tiles.first * width, count = std::min(tiles.stop * width, size) - first;
    float* gates = pass.buffers.units.mine(worker);  // (rows), kept while what was exchanged is overwritten
    const float* logits_end = pass.buffers.exchanged + rows * int64_t(experts.size());
    for (int64_t row = 0; row < rows; ++row) gates[row] = shared_gate ? sigmoid(logits_end[row]) : 1.0f;
    worker.barrier();
    float* all_sums = pass.buffers.exchanged;         // (rows, hidden)
    float* all_shared = all_sums + rows * size;       // (rows, hidden)
    for (int64_t row = 0; row < rows && count > 0; ++row) {
        std::memcpy(all_sums + row * size + first, sums + row * count, count * sizeof(float));
    }
    if (shared != nullptr && count > 0) {
        pass.multiply_tiles(shared_inner(pass, worker), shared->mlp.down, tiles, all_shared + first, size);
    }
    worker.barrier();
    const auto normalise = [&](const std::optional<Norm>& norm, float* row) {
        if (norm) kernels.rms_norm(row, norm->weight.data(), norm->eps, size, row);
    };
    const Range own = worker.share(rows);
    for (int64_t row = own.first; row < own.stop; ++row) {
        float* sum = all_sums + row * size;
        normalise(sum_norm, sum);
        if (shared != nullptr) {
            normalise(shared->output_norm, all_shared + row * size);
            kernels.add_scaled(all_shared + row * size, gates[row], size, sum);
        }
        normalise(output_norm, sum);
        float* x_row = pass.x(worker) + row * size;
        kernels.add(x_row, sum, size, x_row);
        pass.buffers.x.publish(worker, row * size, size);
    }
}

// What the shared part's `down` reads; it lies behind what the experts' ones read.
Activations Experts::shared_inner(const Pass& pass, const Worker& worker) const {
    const int64_t size = shared->mlp.inner();
    const int64_t behind = pass.rows() * router.num_chosen * experts.front().inner();
    const Activations all = pass.inner(worker, size);
    return {all.groups + behind / kGroup, all.groups_per_row, all.values + behind, all.values_per_row};
}

}  // namespace headlong
