// The recurrent state of one mixer and one sequence, with commits that are applied late.
//
// A copy of the state is a matrix for every value head and the newest inputs of the convolution. Committed rows need
// not be in the matrices yet: their keys, values and factors are kept, and the next pass applies them on its way, when
// it loads the matrices anyway. So a pass writes each matrix at most once, a refused row costs nothing, and plain
// decoding reads and writes the state once a row. Rows that stand or fall together (a piece of a prompt) are not kept:
// the pass writes what they make of the matrices to a second copy, and the commit exchanges the two.
//
// A matrix lies in blocks of `width` columns: rows of a block follow each other, since columns do not need each other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "memory.hpp"
#include "layer_parts.hpp"

namespace headlong {

constexpr int kMostHeads = 1024;
constexpr int kMostStateDim = 4096;
constexpr int kMostConvWidth = 16;
constexpr const char* kUnsound =
    "value heads, at most 1024, must share key heads evenly, be of size 1 to 4096, and convolve 2 to 16 rows";

struct RecurrentShape {
    int num_key_heads, num_value_heads, key_dim, value_dim;
    int conv_width;
    int vector_width;

    bool is_sound() const {
        return num_key_heads >= 1 && num_value_heads >= 1 && num_value_heads <= kMostHeads &&
               num_value_heads % num_key_heads == 0 && key_dim >= 1 && key_dim <= kMostStateDim && value_dim >= 1 &&
               value_dim <= kMostStateDim && conv_width >= 2 && conv_width <= kMostConvWidth;
    }
    int heads_each() const { return num_value_heads / num_key_heads; }
    int padded_dim() const { return (value_dim + vector_width - 1) / vector_width * vector_width; }
    int64_t key_size() const { return int64_t{num_key_heads} * key_dim; }
    int64_t num_channels() const { return 2 * key_size() + int64_t{num_value_heads} * value_dim; }
    int64_t block_size() const { return int64_t{key_dim} * vector_width; }
    int64_t num_blocks() const { return padded_dim() / vector_width; }
    int64_t memory_size() const { return num_value_heads * num_blocks() * block_size(); }
    int64_t window_size() const { return (conv_width - 1) * num_channels(); }
    // A row that is kept: keys, values (padded), decays, strengths.
    int64_t value_offset() const { return key_size(); }
    int64_t decay_offset() const { return value_offset() + int64_t{num_value_heads} * padded_dim(); }
    int64_t strength_offset() const { return decay_offset() + num_value_heads; }
    int64_t row_size() const { return strength_offset() + num_value_heads; }
    bool operator==(const RecurrentShape&) const = default;
};

class RecurrentState final : public MixerState {
public:
    // The matrices after some row, and the inputs of the convolution up to it.
    struct Copy {
        std::shared_ptr<HugeBuffer> room;

        float* memory() const { return reinterpret_cast<float*>(room->bytes()); }
        float* window(const RecurrentShape& shape) const { return memory() + shape.memory_size(); }
    };

    RecurrentState(const RecurrentShape& shape, std::shared_ptr<Recycler> rooms) : shape(shape), rooms_(std::move(rooms)) {}

    const RecurrentShape shape;

    size_t num_bytes() const { return (shape.memory_size() + shape.window_size()) * sizeof(float); }
    int64_t num_expected() const { return num_expected_; }

    // Make room for the rows of the next pass. Snapshots are taken after so many of them.
    void append(int64_t num_rows, bool all_or_none, std::vector<int64_t> snapshots) {
        if (num_rows < 1 || num_expected_ > 0) throw std::invalid_argument("rows were appended that no pass has run");
        if (num_pending_ > 0 && (all_or_none || all_or_none_)) {
            throw std::invalid_argument("rows that stand or fall together must be the only pending ones");
        }
        int64_t last = 0;
        for (const int64_t at : snapshots) {
            if (!all_or_none || at <= last || at > num_rows) throw std::invalid_argument("no snapshot can be taken there");
            last = at;
        }
        if (current_.room == nullptr) begin();
        std::vector<Copy> wanted(snapshots.size());
        for (Copy& copy : wanted) copy = make_copy();
        if (all_or_none) next_ = make_copy();
        if (!all_or_none) make_room(num_committed_ + num_pending_ + num_rows);
        pending_snapshots_ = std::move(wanted);
        snapshot_rows_ = std::move(snapshots);
        all_or_none_ = all_or_none;
        num_expected_ = num_rows;
    }

    void commit(int64_t num_rows) {
        if (num_rows < 0 || num_rows > num_pending_ || (all_or_none_ && num_rows > 0 && num_rows < num_pending_)) {
            throw std::invalid_argument("these rows are not pending, or stand only together");
        }
        if (all_or_none_ && num_rows > 0) {
            std::swap(current_, next_);
            std::memcpy(inputs(0), current_.window(shape), shape.window_size() * sizeof(float));
            for (Copy& copy : pending_snapshots_) snapshots_.push_back(std::move(copy));
        } else {
            num_committed_ += num_rows;
        }
        rollback();
    }

    void rollback() {
        num_pending_ = num_expected_ = 0;
        all_or_none_ = false;
        next_ = {};
        pending_snapshots_.clear();
        snapshot_rows_.clear();
    }

    // Hold what `other`, which may be this one, holds now or held at a snapshot; -1 for now.
    void copy_from(const RecurrentState& other, int64_t snapshot) {
        if (!(shape == other.shape)) throw std::invalid_argument("a state can only be copied from one of the same shape");
        if (snapshot < -1 || snapshot >= static_cast<int64_t>(other.snapshots_.size())) {
            throw std::invalid_argument("there is no such snapshot");
        }
        if (snapshot < 0 && &other == this) return rollback();
        if (other.current_.room == nullptr) throw std::invalid_argument("there is nothing to copy yet");
        if (current_.room == nullptr) begin();
        rollback();
        const Copy& source = snapshot < 0 ? other.current_ : other.snapshots_[snapshot];
        std::memcpy(current_.memory(), source.memory(), shape.memory_size() * sizeof(float));
        first_ = num_committed_ = 0;
        make_room(other.num_committed_);
        num_committed_ = snapshot < 0 ? other.num_committed_ : 0;
        const float* window = snapshot < 0 ? other.inputs(0) : source.window(shape);
        std::memcpy(inputs(0), window, (shape.window_size() + num_committed_ * shape.num_channels()) * sizeof(float));
        if (num_committed_ > 0) std::memcpy(row(0), other.row(0), num_committed_ * shape.row_size() * sizeof(float));
    }

    void forget_snapshot(int64_t snapshot) {
        if (snapshot < 0 || snapshot >= static_cast<int64_t>(snapshots_.size())) {
            throw std::invalid_argument("there is no such snapshot");
        }
        snapshots_.erase(snapshots_.begin() + snapshot);
    }

    // What a pass reads and writes. Kept rows are the committed ones that wait to be applied, then the pending ones.
    bool all_or_none() const { return all_or_none_; }
    int64_t num_committed() const { return num_committed_; }
    int64_t num_pending() const { return num_pending_; }
    const Copy& current() const { return current_; }
    const Copy& next() const { return next_; }
    const std::vector<int64_t>& snapshot_rows() const { return snapshot_rows_; }
    const std::vector<Copy>& pending_snapshots() const { return pending_snapshots_; }
    float* row(int64_t index) const { return rows_.get() + (first_ + index) * shape.row_size(); }
    // Inputs of the convolution: those of kept row i are at i + conv_width - 1, the ones before it at i and so on.
    float* inputs(int64_t index) const { return inputs_.get() + (first_ + index) * shape.num_channels(); }
    float* block(const Copy& copy, int64_t value_head, int64_t block) const {
        return copy.memory() + (value_head * shape.num_blocks() + block) * shape.block_size();
    }
    // The pass is over: committed rows are applied, its own rows are pending. Must not throw.
    void finish_pass() {
        first_ += num_committed_;
        num_committed_ = 0;
        num_pending_ += num_expected_;
        num_expected_ = 0;
    }

private:
    static constexpr int64_t kFewestRows = 32;

    Copy make_copy() const { return {rooms_->lend(num_bytes())}; }

    void begin() {
        current_ = make_copy();
        std::memset(current_.memory(), 0, num_bytes());
        make_room(1);
        std::memset(inputs(0), 0, shape.window_size() * sizeof(float));
    }

    // Make room for so many kept rows, with those there are at the front.
    void make_room(int64_t num_rows) {
        if (first_ + num_rows <= capacity_) return;
        const int64_t held = num_committed_ + num_pending_, window = shape.conv_width - 1;
        if (2 * num_rows <= capacity_) {
            std::memmove(rows_.get(), row(0), held * shape.row_size() * sizeof(float));
            std::memmove(inputs_.get(), inputs(0), (held + window) * shape.num_channels() * sizeof(float));
            first_ = 0;
            return;
        }
        const int64_t capacity = std::max(2 * num_rows, kFewestRows);
        std::unique_ptr<float[]> rows(new float[capacity * shape.row_size()]);
        std::unique_ptr<float[]> all_inputs(new float[(capacity + window) * shape.num_channels()]);
        if (capacity_ > 0) {
            std::memcpy(rows.get(), row(0), held * shape.row_size() * sizeof(float));
            std::memcpy(all_inputs.get(), inputs(0), (held + window) * shape.num_channels() * sizeof(float));
        }
        rows_ = std::move(rows);
        inputs_ = std::move(all_inputs);
        capacity_ = capacity;
        first_ = 0;
    }

    std::shared_ptr<Recycler> rooms_;
    Copy current_;  // with all rows applied that are not kept
    Copy next_;     // with the pending rows applied as well, where they stand or fall together
    std::vector<Copy> snapshots_, pending_snapshots_;
    std::vector<int64_t> snapshot_rows_;
    std::unique_ptr<float[]> rows_, inputs_;
    int64_t first_ = 0, capacity_ = 0;
    int64_t num_committed_ = 0, num_pending_ = 0, num_expected_ = 0;
    bool all_or_none_ = false;
};

}  // namespace headlong
