// How weights and activations lie in memory: the one thing packers and kernels must agree on.
//
// A packed matrix is cut into tiles of `width` outputs (one or two vector registers). Inside a tile, quantised weights
// are ordered group (32 inputs) → quad (4 inputs) → output → byte, so that one broadcast of four activation bytes
// meets the same four inputs of all outputs of the tile.
// Groups come in pairs, [scales of both][weights of both]: one linear stream for the prefetchers,
// and whole cache lines. (Scales at the start of the tile cost half the bandwidth.)
//
// A group's weights start with the low four bits: its first 16 numbers in the low halves of the bytes, the others in
// the high halves. Bits beyond these follow in planes: for 5 bits one, whose bit v belongs to quad v; for 6 bits two,
// one for each 16 numbers, with two bits for every quad. Of 8 bits, every number has its own byte.
#pragma once

#include <cstddef>
#include <cstdint>

#include "memory.hpp"

namespace headlong {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

constexpr int kGroup = 32;  // inputs that share a scale, in weights and in activations

enum class Activation { silu, gelu_tanh, relu_squared };

enum class Format { q4, q5, q6, q8, f16, bf16, f32 };

// What a quantised group says about the size of its weights. `one`: a binary16 scale, the minimum of 4 or 5 bits being
// -8 or -16 times that; `two`: scale and minimum, binary16 each, 8 bits counting from -128; `wide`: likewise, but both
// groups of a pair share them; `nested`: two 8-bit integers, which multiply numbers that 256 inputs share: scale and
// minimum, or for 6 bits the scale of either 16 inputs.
// 8 bits are not `nested`, 6 bits are, 4 and 5 bits may have any.
enum class Scales { one, two, wide, nested };

constexpr int kNested = 8;  // groups that share the numbers of nested scales

// Bytes of the parts of a tile.
struct TileLayout {
    size_t shared;   // before every kNested groups: binary16 scales, then minima; for 6 bits float scales
    size_t scales;   // of a group
    size_t weights;  // of a group

    constexpr size_t pair() const { return 2 * (scales + weights); }
    // The last pair may be half empty.
    constexpr size_t tile(int64_t num_groups) const {
        return ceil_div(num_groups, kNested) * shared + ceil_div(num_groups, 2) * pair();
    }
};

constexpr TileLayout layout_of(Format format, Scales scales, size_t width) {
    const size_t bits = format == Format::q4 ? 4 : format == Format::q5 ? 5 : format == Format::q6 ? 6 : 8;
    return {scales == Scales::nested ? width * 4 : 0, scales == Scales::two ? width * 4 : width * 2,
            width * kGroup * bits / 8};
}

// One group of a row of activations, quantised on its own so that rows stay independent. It fills a cache
// line, so that one worker can publish it to another.
struct alignas(64) ActGroup {
    int8_t q[kGroup];
    float scale;          // value = q * scale
    float sum;            // scale * Σ q, which the minimum of a group multiplies
    int32_t minus_offset; // -128 * Σ q, which takes back the +128 of unsigned 8-bit weights
    int32_t minus_halves[2];  // -32 * Σ q of either 16, which takes back the +32 of 6-bit weights
};
static_assert(sizeof(ActGroup) == 64);

// A weight matrix (outputs, inputs), packed for one instruction set.
struct Matrix {
    Format format;
    Scales scales;          // of quantised formats
    int64_t outputs;
    int64_t inputs;
    float unit;             // of all scales and minima: a power of two, not 1 where binary16 is too narrow without it
    int width;              // outputs per tile
    int64_t num_tiles;
    size_t tile_bytes;      // distance from tile to tile
    Piece data;

    bool is_quantised() const { return format <= Format::q8; }
    TileLayout layout() const { return layout_of(format, scales, width); }
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
