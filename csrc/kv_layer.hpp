// Keys and values of one layer and one sequence in 16-bit floats.
//
// Keys of a head lie in blocks of `block` positions, dimension by dimension, so that one broadcast
// of a query number meets many positions; values lie position by position, rows padded to vectors.
// Room that nothing was written to is zero, so padding and masked positions stay harmless.
#pragma once

#include <cstdint>
#include <cstring>

#include "memory.hpp"

namespace headlong {

constexpr int kChunk = 64;  // positions that attention reduces at once; aligned to position 0

class KVLayer {
public:
    KVLayer(int num_kv_heads, int head_dim, int width)
        : num_kv_heads(num_kv_heads), head_dim(head_dim), block(2 * width),
          padded_dim((head_dim + 2 * width - 1) / (2 * width) * (2 * width)) {}

    const int num_kv_heads;
    const int head_dim;
    const int block;       // positions per block of keys
    const int padded_dim;  // numbers per row of values

    int64_t capacity() const { return capacity_; }
    size_t num_bytes() const { return keys_.size() + values_.size(); }

    // Make room for `capacity` positions, keeping what is there.
    void reserve(int64_t capacity) {
        const int64_t rounded = (capacity + kChunk - 1) / kChunk * kChunk;
        if (rounded <= capacity_) return;
        keys_ = grown(keys_, rounded, head_dim);
        values_ = grown(values_, rounded, padded_dim);
        capacity_ = rounded;
    }

    size_t bytes_per_position() const { return size_t(num_kv_heads) * (head_dim + padded_dim) * 2; }

    // Take over the first `num_positions` of a layer of the same shape. Whole blocks of keys are
    // copied; what lies behind the last position is overwritten before anything reads it.
    void copy_from(const KVLayer& other, int64_t num_positions) {
        reserve(num_positions);
        const int64_t rounded = (num_positions + block - 1) / block * block;
        for (int head = 0; head < num_kv_heads; ++head) {
            std::memcpy(const_cast<uint16_t*>(key_block(head, 0)), other.key_block(head, 0),
                        size_t(rounded) * head_dim * 2);
            std::memcpy(const_cast<uint16_t*>(value_row(head, 0)), other.value_row(head, 0),
                        size_t(num_positions) * padded_dim * 2);
        }
    }

    // Keys of `block` positions from `position` on, which must start a block.
    const uint16_t* key_block(int head, int64_t position) const {
        return keys() + (head * capacity_ + position) * head_dim;
    }
    const uint16_t* value_row(int head, int64_t position) const {
        return values() + (head * capacity_ + position) * padded_dim;
    }

    void write_key(int head, int64_t position, const uint16_t* key) {
        const int64_t lane = position % block;
        uint16_t* to = const_cast<uint16_t*>(key_block(head, position - lane)) + lane;
        for (int d = 0; d < head_dim; ++d) to[d * block] = key[d];
    }
    void write_value(int head, int64_t position, const uint16_t* value) {
        std::memcpy(const_cast<uint16_t*>(value_row(head, position)), value, head_dim * 2);
    }

private:
    const uint16_t* keys() const { return reinterpret_cast<const uint16_t*>(keys_.bytes()); }
    const uint16_t* values() const { return reinterpret_cast<const uint16_t*>(values_.bytes()); }

    // Heads lie one after the other, so each is moved to its new place.
    HugeBuffer grown(const HugeBuffer& old, int64_t capacity, int row_size) const {
        HugeBuffer buffer(size_t(num_kv_heads) * capacity * row_size * 2);
        const size_t held = size_t(capacity_) * row_size * 2;
        for (int head = 0; held > 0 && head < num_kv_heads; ++head) {
            const size_t place = size_t(head) * capacity * row_size * 2;
            std::memcpy(buffer.bytes() + place, old.bytes() + head * held, held);
        }
        return buffer;
    }

    int64_t capacity_ = 0;
    HugeBuffer keys_;
    HugeBuffer values_;
};

}  // namespace headlong
