// What the two parts of a layer offer, whatever they compute.
//
// The mixer combines rows of one sequence; attention is one. A new kind is a class derived from Mixer with a state
// derived from MixerState, a file for its `run`, and its binding. The channel part works on every row alone; a new
// kind is a class derived from Channel.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace headlong {

class Pass;
class Worker;
struct Kernels;

// In a pass of up to so many rows, workers wait for memory and other cores more than for products.
constexpr int64_t kFewRows = 16;

// Consecutive rows of a pass that belong to one sequence.
struct Span {
    int64_t first_row, num_rows, first_position;
};

inline int64_t num_rows_of(const std::vector<Span>& spans) {
    return spans.empty() ? 0 : spans.back().first_row + spans.back().num_rows;
}

// What a mixer keeps of one sequence.
struct MixerState {
    virtual ~MixerState() = default;
};

using MixerStates = std::vector<MixerState*>;  // one per span

// The scratch that a block needs in a pass. Sizes are per row where nothing else is said.
struct ScratchNeeds {
    int64_t hidden = 0;         // rows that the block adds to
    int64_t inputs = 0;         // of its first projections
    int64_t inner = 0;          // inputs of its last projection
    int64_t projected = 0;      // outputs of a mixer's first projections
    int64_t gates = 0;          // what multiplies a mixer's result
    int64_t query_bytes = 0;
    int64_t cut_bytes = 0;      // per worker, for one attention item that it shares with others
    int64_t unit = 0;           // outputs that a worker computes together
    int64_t exchanged = 0;      // numbers that workers leave for each other
    int64_t choices = 0;        // experts of a row
    int64_t plan_bytes = 0;     // per worker, for which rows go to which expert
    int64_t sums = 0;           // outputs of experts
    int64_t gathered = 0;       // inputs of experts

    void include(const ScratchNeeds& other) {
        for (const auto field : {&ScratchNeeds::hidden, &ScratchNeeds::inputs, &ScratchNeeds::inner,
                                 &ScratchNeeds::projected, &ScratchNeeds::gates, &ScratchNeeds::query_bytes, &ScratchNeeds::cut_bytes,
                                 &ScratchNeeds::unit, &ScratchNeeds::exchanged, &ScratchNeeds::choices, &ScratchNeeds::plan_bytes,
                                 &ScratchNeeds::sums, &ScratchNeeds::gathered}) {
            this->*field = std::max(this->*field, other.*field);
        }
    }
};

// The heads of a block as attention reads them: queries and keys of `key_dim` numbers, values of `value_dim`.
struct AttendShape {
    int num_heads, num_kv_heads, key_dim, value_dim;
    int64_t window;  // 0 sees all

    int heads_per_kv() const { return num_heads / num_kv_heads; }
};

class Mixer {
public:
    virtual ~Mixer() = default;

    virtual int64_t hidden_size() const = 0;
    // Whether it reads rows beside x (PassInput::beside).
    virtual bool reads_beside() const { return false; }
    // Throws std::invalid_argument when sizes do not fit together.
    virtual void check() const = 0;
    // Throws std::invalid_argument when the state is of another kind or shape, or has no room for the span.
    virtual void check_state(const MixerState& state, const Span& span) const = 0;
    virtual ScratchNeeds needs(const std::vector<Span>& spans, const Kernels& kernels) const = 0;
    // Called before a pass that goes up to `num_positions`, never during one.
    virtual void prepare(int64_t num_positions) const { static_cast<void>(num_positions); }
    // x += mixer(norm(x)) for all rows. Every worker calls it, and finds all rows finished when it returns.
    virtual void run(Pass& pass, Worker& worker, const MixerStates& states) const = 0;

    // Whether all that it leaves of rows are entries in caches, which can be written without the rest.
    virtual bool writes_keys() const { return false; }
    virtual ScratchNeeds needs_of_keys() const { return {}; }
    // Write what `run` would write, and nothing else.
    virtual void write_keys(Pass&, Worker&, const MixerStates&) const {}
};

class Channel {
public:
    virtual ~Channel() = default;

    virtual int64_t hidden_size() const = 0;
    // How many numbers of each row beside x (PassInput::beside) it may read.
    virtual int64_t reads_up_to() const { return 0; }
    // Throws std::invalid_argument when sizes do not fit together.
    virtual void check() const = 0;
    virtual ScratchNeeds needs(int64_t num_rows, const Kernels& kernels) const = 0;
    // x += channel(norm(x)) for all rows. Every worker calls it, and finds all rows finished when it returns.
    virtual void run(Pass& pass, Worker& worker) const = 0;
};

}  // namespace headlong
