// How weights and activations lie in memory: the one thing packers and kernels must agree on.
//
// A packed matrix is cut into tiles of `width` outputs (one or two vector registers). Inside a tile, quantised weights
// are ordered group (32 inputs) → quad (4 inputs) → output → byte, so that one broadcast of four activation bytes
// meets the same four inputs of all outputs of the tile.
// Groups come in pairs, [scales of both][weights of both]: one linear stream for the prefetchers,
// and whole cache lines. (Scales at the start of the tile cost half the bandwidth.)
#pragma once

#include <cstddef>
#include <cstdint>

#include "memory.hpp"

namespace headlong {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

constexpr int kGroup = 32;  // inputs that share a scale, in weights and in activations

enum class Activation { silu, gelu_tanh, relu_squared };

enum class Format { q4, q8, f16, bf16, f32 };

// One group of a row of activations, quantised on its own so that rows stay independent. It fills a cache
// line, so that one worker can publish it to another.
struct alignas(64) ActGroup {
    int8_t q[kGroup];
    float scale;          // value = q * scale
    float sum;            // scale * Σ q, which the minimum of a 4-bit group multiplies
    int32_t minus_offset; // -128 * Σ q, which takes back the +128 of unsigned 8-bit weights
};
static_assert(sizeof(ActGroup) == 64);

// A weight matrix (outputs, inputs), packed for one instruction set.
struct Matrix {
    Format format;
    int64_t outputs;
    int64_t inputs;
    int width;              // outputs per tile
    int64_t num_tiles;
    size_t tile_bytes;      // distance from tile to tile
    Piece data;

    bool is_quantised() const { return format == Format::q4 || format == Format::q8; }
    int64_t num_groups() const { return inputs / kGroup; }
    const uint8_t* tile(int64_t index) const { return data.bytes + index * tile_bytes; }
};

// Rows of activations as a matrix product reads them; a form that is not needed is absent.
struct Activations {
    const ActGroup* groups = nullptr;
    size_t groups_per_row = 0;
    const float* values = nullptr;
    size_t values_per_row = 0;
};

}  // namespace headlong
