// Keys and values of one layer and one sequence: 16-bit integers, with a scale for every position of a head.
//
// Integers because two products of them cost what one of floats does, and because their sums are exact in any
// order; they are as precise as 16-bit floats. Keys of a head lie in blocks of `block` positions, two dimensions
// at a time, so that one broadcast of two query numbers meets many positions. Values lie two positions at a time,
// dimension by dimension, padded to vectors. Memory that was not written yet holds anything: what a row does not
// see weighs 0.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "memory.hpp"
#include "layer_parts.hpp"

namespace headlong {

constexpr int kChunk = 64;  // positions that attention reduces at once; aligned to position 0

class KVLayer final : public MixerState {
public:
    KVLayer(int num_kv_heads, int key_dim, int value_dim, int width, std::shared_ptr<Recycler> buffers)
        : num_kv_heads(num_kv_heads), key_dim(key_dim), value_dim(value_dim), block(2 * width),
          padded_dim(padded(value_dim, width)), buffers_(std::move(buffers)) {}

    static int padded(int value_dim, int width) { return (value_dim + 2 * width - 1) / (2 * width) * (2 * width); }

    const int num_kv_heads;
    const int key_dim;     // even
    const int value_dim;
    const int block;       // positions per block of keys
    const int padded_dim;  // numbers per value

    int64_t capacity() const { return capacity_; }
    size_t num_bytes() const { return capacity_ * bytes_per_position(); }
    size_t bytes_per_position() const {
        return size_t(num_kv_heads) * ((key_dim + padded_dim) * sizeof(int16_t) + 2 * sizeof(float));
    }
    bool has_shape_of(const KVLayer& other) const {
        return num_kv_heads == other.num_kv_heads && key_dim == other.key_dim && value_dim == other.value_dim &&
               block == other.block;
    }

    void reserve(int64_t capacity) { reserve_all({this}, capacity); }

    // Make room for `capacity` positions in all of these layers, keeping what is there. Layers of a short sequence
    // fill huge pages only together: in small ones, page walks cost a pass 2 to 6 %. Batch by batch, so that
    // little memory is ever held twice.
    static void reserve_all(const std::vector<KVLayer*>& layers, int64_t capacity) {
        const int64_t rounded = (capacity + kChunk - 1) / kChunk * kChunk;
        std::vector<KVLayer*> batch;
        size_t num_bytes = 0;
        for (KVLayer* layer : layers) {
            if (layer->capacity_ < rounded) {
                batch.push_back(layer);
                num_bytes += rounded * layer->bytes_per_position();
            }
            if (batch.empty() || (num_bytes < kBatchBytes && layer != layers.back())) continue;
            Piece memory{batch.front()->buffers_->lend(num_bytes)};
            memory.bytes = memory.slab->bytes();
            for (KVLayer* layer : batch) memory.bytes = layer->move_to(memory, rounded);
            batch.clear();
            num_bytes = 0;
        }
    }

    // Take over the first `num_positions` of a layer of the same shape. Whole blocks are copied; what lies
    // behind the last position is overwritten before anything reads it.
    void copy_from(const KVLayer& other, int64_t num_positions) {
        reserve(num_positions);
        const size_t rounded = (num_positions + block - 1) / block * block;
        for (int head = 0; head < num_kv_heads; ++head) {
            std::memcpy(key_block(head, 0), other.key_block(head, 0), rounded * key_dim * sizeof(int16_t));
            std::memcpy(value_pairs(head, 0), other.value_pairs(head, 0), rounded * padded_dim * sizeof(int16_t));
            std::memcpy(key_scales(head, 0), other.key_scales(head, 0), rounded * sizeof(float));
            std::memcpy(value_scales(head, 0), other.value_scales(head, 0), rounded * sizeof(float));
        }
    }

    // Keys of `block` positions from `position` on, which must start a block.
    int16_t* key_block(int head, int64_t position) const { return keys() + (head * capacity_ + position) * key_dim; }
    // Values from `position` on, which must be even.
    int16_t* value_pairs(int head, int64_t position) const {
        return values() + (head * capacity_ + position) * padded_dim;
    }
    float* key_scales(int head, int64_t position) const { return scales() + head * capacity_ + position; }
    float* value_scales(int head, int64_t position) const {
        return key_scales(num_kv_heads + head, position);
    }

    void write_key(int head, int64_t position, const int16_t* key, float scale) {
        const int64_t lane = position % block;
        int16_t* to = key_block(head, position - lane) + 2 * lane;
        for (int d = 0; d < key_dim; d += 2) std::memcpy(to + d * block, key + d, 2 * sizeof(int16_t));
        *key_scales(head, position) = scale;
    }
    void write_value(int head, int64_t position, const int16_t* value, float scale) {
        // Number by number: the other position of the pair may be written by another worker.
        int16_t* to = value_pairs(head, position / 2 * 2) + position % 2;
        for (int d = 0; d < value_dim; ++d) to[2 * d] = value[d];
        *value_scales(head, position) = scale;
    }

private:
    static constexpr size_t kBatchBytes = size_t{8} << 20;

    int16_t* keys() const { return reinterpret_cast<int16_t*>(memory_.bytes); }
    int16_t* values() const { return keys() + num_kv_heads * capacity_ * key_dim; }
    float* scales() const { return reinterpret_cast<float*>(values() + num_kv_heads * capacity_ * padded_dim); }

    // Move to this memory, and return where it ends. Heads lie one after the other, so each is moved to its place.
    uint8_t* move_to(const Piece& memory, int64_t capacity) {
        uint8_t* place = memory.bytes;
        const auto move = [&](const void* old, int num_heads, size_t row_bytes) {
            const size_t held = size_t(capacity_) * row_bytes;
            for (int head = 0; head < num_heads; ++head, place += size_t(capacity) * row_bytes) {
                if (held > 0) std::memcpy(place, static_cast<const uint8_t*>(old) + head * held, held);
            }
        };
        move(keys(), num_kv_heads, key_dim * sizeof(int16_t));
        move(values(), num_kv_heads, padded_dim * sizeof(int16_t));
        move(scales(), 2 * num_kv_heads, sizeof(float));
        memory_ = memory;
        capacity_ = capacity;
        return place;
    }

    std::shared_ptr<Recycler> buffers_;
    int64_t capacity_ = 0;
    Piece memory_;  // keys, values, scales of keys, scales of values
};

}  // namespace headlong
