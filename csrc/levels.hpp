// Quantised weights between a file and a tile: levels as bytes, scales as they came.
#pragma once

#include <cstdint>

#include "formats.hpp"

namespace headlong {

// How the rows handed to a packer are encoded: as in GGUF files, or plain floats.
enum class Source { q4_0, q4_1, q4_k, q5_0, q5_1, q5_k, q6_k, q8_0, f16, bf16, f32 };

// Bytes of one row of `inputs` numbers; throws std::invalid_argument if they do not fill blocks.
size_t row_bytes(Source source, int64_t inputs);

// One group on its way into a tile.
struct Group {
    alignas(16) uint8_t q[kGroup];  // from 0, but 8 bits are signed
    uint16_t scale, minimum;        // binary16, where scales are not nested
    uint8_t nested[2];              // scale and minimum, or the signed scales of both halves of 6 bits
};

// Up to kNested groups of a row, and what they share where scales are nested.
struct Block {
    Group groups[kNested];
    float scale, minimum;
};

// Rows as MLX packs them: levels of 2 to 8 bits in one stream, the lowest bits first, and a scale and a minimum for
// every `group` of them.
struct AffineRows {
    const uint8_t *levels, *scales, *minima;  // the latter two binary16
    int bits;
    int64_t group, inputs;
};

// Groups `first` up to, not including, `stop` of a row, for a format of 4, 5 or 8 bits that holds the levels.
void read_affine(Format format, const AffineRows& rows, int64_t row, int64_t first, int64_t stop, Block& to);

// The format and scales that hold a quantised source bit for bit.
Format format_of(Source source);
Scales scales_of(Source source);

// Groups `first` up to, not including, `stop` of a row of a quantised source; `first` is a multiple of kNested.
void read_block(Source source, const uint8_t* row, int64_t first, int64_t stop, Block& to);

// Round groups of floats to a format: 4 and 5 bits with two scales, the others as they are stored. Throws
// std::invalid_argument for numbers that no scale can hold.
void round_block(Format format, const float* x, int64_t num_groups, Block& to);

// What the levels of a block mean.
void to_floats(Format format, Scales scales, const Block& block, int64_t num_groups, float* to);

// `count` numbers of a row from `first` on, which is a multiple of what a block holds.
void read_floats(Source source, const uint8_t* row, int64_t first, int64_t count, float* to);

}  // namespace headlong
