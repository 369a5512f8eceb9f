// The steps that blocks of a pass are made of, as every worker of the team takes them; private to the engine.
#pragma once

#include <initializer_list>

#include "blocks.hpp"
#include "engine.hpp"
#include "experts.hpp"
#include "team_scratch.hpp"

namespace headlong {

// What a projection reads: norm(x), or norm(beside) and norm(x) side by side.
struct ProjectionInput {
    const float* x;
    const Norm* norm = nullptr;        // null takes x as it is
    const float* beside = nullptr;     // goes in front of x
    const Norm* beside_norm = nullptr;
};

// The scratch of a pass.
struct PassBuffers {
    PassBuffers(Workspace& workspace, const TeamScratch& team, const PassInput& input, const ScratchNeeds& needs,
                const Kernels& kernels);

    SharedBuffer<float> x;                // (rows, hidden)
    SharedBuffer<ActGroup> inner_groups;  // what a block's last projection reads
    float* inner_values;                  // (rows, inner), the same where its weights are not quantised
    float* gates;                         // (rows, what multiplies a mixer's result)
    SharedBuffer<uint8_t> queries;        // (kv heads, rows, heads of each), rotated and rounded
    SharedBuffer<uint8_t> partials;       // of every worker: its parts of two items that it shares with others
    int64_t bytes_per_cut;                // of one such part
    WorkerBuffers<ActGroup> groups;       // (rows, inputs / 32)
    WorkerBuffers<float> values;          // (rows, inputs)
    WorkerBuffers<float> projected;       // (rows, outputs of a mixer's first projections)
    WorkerBuffers<float> results;         // (rows, hidden) as a whole, or a worker's columns of them
    WorkerBuffers<float> units;           // a few outputs for all rows
    float* exchanged;                     // (rows, numbers that workers leave for each other)
    WorkerBuffers<Choice> choices;        // (rows, experts of each)
    WorkerBuffers<uint8_t> plans;         // which rows go to which expert
    WorkerBuffers<float> sums;            // (rows, a worker's columns)
    WorkerBuffers<ActGroup> gathered_groups;  // (rows of an expert, inputs / 32)
    WorkerBuffers<float> gathered_values;     // (rows of an expert, inputs)
};

class Pass {
public:
    // Reserves scratch before the team starts. Every step reads `input` again. It may have fewer rows by then, but
    // `input.x` must be the same.
    Pass(Engine& engine, const PassInput& input, const TeamScratch& team, const ScratchNeeds& needs)
        : input(input), kernels(engine.kernels), buffers(engine.workspace, team, input, needs, engine.kernels),
          team_(team), hidden_size_(needs.hidden) {}

    const PassInput& input;
    const Kernels& kernels;
    const PassBuffers buffers;

    // All workers call these before the first block and after the last.
    void begin(Worker& worker) const { buffers.x.load(worker, rows() * hidden_size_); }
    void end(Worker& worker) const { buffers.x.store(worker, rows() * hidden_size_); }

    int64_t rows() const { return input.num_rows; }
    bool is_short() const { return rows() <= kFewRows; }
    float* x(const Worker& worker) const { return buffers.x.mine(worker); }

    // Norm and quantise the rows as `readers` want them, and return when all are there.
    Activations prepare(Worker& worker, const ProjectionInput& from,
                        std::initializer_list<const Linear*> readers) const;

    // y = every linear's result side by side, each worker doing its share of the tiles.
    void multiply(Worker& worker, const Activations& x, std::initializer_list<const Linear*> linears,
                  float* y, int64_t ldy) const;
    // y = these tiles of a linear's result.
    void multiply_tiles(const Activations& x, const Linear& linear, Range tiles, float* y, int64_t ldy) const;
    // The same for some rows only.
    void multiply_rows(const Activations& x, int64_t num_rows, const Linear& linear, Range tiles, float* y,
                       int64_t ldy) const;
    // y = linear(norm(x)), as far as these tiles go, which this worker takes.
    void project_tiles(Worker& worker, const float* x, const Norm* norm, const Linear& linear, Range tiles,
                       float* y) const;

    // What a block's last projection reads, once all workers have written it to the inner buffers.
    Activations inner(const Worker& worker, int64_t size) const {
        return {buffers.inner_groups.mine(worker), size_t(size / kGroup), buffers.inner_values, size_t(size)};
    }
    // Quantise inner values of `size` a row, where blocks could not do so on their own.
    void quantise_inner(Worker& worker, int64_t size) const;
    // x += norm(linear(inner)), and wait.
    void add_result(Worker& worker, const Activations& inner, const Linear& linear,
                    const std::optional<Norm>& norm) const;

    // x = norm(x). Others may read it behind the next barrier.
    void normalise(Worker& worker, const Norm& norm) const;
    // x *= factor, and wait.
    void scale(Worker& worker, float factor) const;

private:
    struct Forms { int64_t inputs = 0; bool groups = false, values = false; };

    void prepare_row(const ProjectionInput& from, int64_t row, const Forms& forms, float* values,
                     ActGroup* groups) const;
    void add_normed(Worker& worker, const Activations& inner, const Linear& linear, const Norm& norm) const;
    void add_columns(Worker& worker, const Activations& inner, const Linear& linear) const;

    const TeamScratch team_;
    const int64_t hidden_size_;
};

}  // namespace headlong
