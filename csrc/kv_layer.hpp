// Keys and values of one layer and one sequence in 16-bit floats.
//
// Keys of a head lie in blocks of `block` positions, dimension by dimension, so that one broadcast
// of a query number meets many positions; values lie position by position, rows padded to vectors.
// Room that nothing was written to is zero, so padding and masked positions stay harmless.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

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
    size_t num_bytes() const { return capacity_ * bytes_per_position(); }
    size_t bytes_per_position() const { return size_t(num_kv_heads) * (head_dim + padded_dim) * 2; }

    void reserve(int64_t capacity) { reserve_all({this}, capacity); }

    // Make room for `capacity` positions in all of these layers, keeping what is there. Layers of a short sequence
    // fill huge pages only together: in small ones, page walks cost a pass 2 to 6 %. Bunch by bunch, so that there
    // is never much room twice.
    static void reserve_all(const std::vector<KVLayer*>& layers, int64_t capacity) {
        const int64_t rounded = (capacity + kChunk - 1) / kChunk * kChunk;
        std::vector<KVLayer*> bunch;
        size_t num_bytes = 0;
        for (KVLayer* layer : layers) {
            if (layer->capacity_ < rounded) {
                bunch.push_back(layer);
                num_bytes += rounded * layer->bytes_per_position();
            }
            if (bunch.empty() || (num_bytes < kBunch && layer != layers.back())) continue;
            Piece room{std::make_shared<HugeBuffer>(num_bytes)};
            room.bytes = room.slab->bytes();
            for (KVLayer* member : bunch) room.bytes = member->move_to(room, rounded);
            bunch.clear();
            num_bytes = 0;
        }
    }

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
    static constexpr size_t kBunch = size_t{8} << 20;

    const uint16_t* keys() const { return reinterpret_cast<const uint16_t*>(room_.bytes); }
    const uint16_t* values() const { return keys() + num_kv_heads * capacity_ * head_dim; }

    // Take the room from here on; return where it ends. Heads lie one after the other, so each is moved to its place.
    uint8_t* move_to(const Piece& room, int64_t capacity) {
        uint8_t* place = room.bytes;
        const auto move = [&](const uint16_t* old, int row_size) {
            const size_t held = size_t(capacity_) * row_size;
            for (int head = 0; head < num_kv_heads; ++head, place += size_t(capacity) * row_size * 2) {
                if (held > 0) std::memcpy(place, old + head * held, held * 2);
            }
        };
        move(keys(), head_dim);
        move(values(), padded_dim);
        room_ = room;
        capacity_ = capacity;
        return place;
    }

    int64_t capacity_ = 0;
    Piece room_;  // keys, then values
};

}  // namespace headlong
