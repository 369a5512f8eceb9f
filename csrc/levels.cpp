#include "levels.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "simd_portable.hpp"

namespace headlong {

namespace {

struct Stored { int64_t numbers; size_t bytes; };  // of a block in a file

Stored stored(Source source) {
    switch (source) {
        case Source::q4_0: return {kGroup, 18};
        case Source::q4_1: return {kGroup, 20};
        case Source::q5_0: return {kGroup, 22};
        case Source::q5_1: return {kGroup, 24};
        case Source::q8_0: return {kGroup, 34};
        case Source::q4_k: return {kNested * kGroup, 144};
        case Source::q5_k: return {kNested * kGroup, 176};
        case Source::q6_k: return {kNested * kGroup, 210};
        case Source::f32: return {1, 4};
        case Source::f16: case Source::bf16: return {1, 2};
    }
    throw std::invalid_argument("unknown source of weights");
}

uint16_t read_half(const uint8_t* p) {
    uint16_t half;
    std::memcpy(&half, p, 2);
    return half;
}

// The first 16 numbers lie in the low halves of the bytes, the others in the high halves.
void read_nibbles(const uint8_t* bytes, Group& to) {
    for (int i = 0; i < 16; ++i) {
        to.q[i] = bytes[i] & 15;
        to.q[i + 16] = bytes[i] >> 4;
    }
}

// Bit i of 32 belongs to number i.
void add_fifth_bits(const uint8_t* bytes, Group& to) {
    uint32_t bits;
    std::memcpy(&bits, bytes, 4);
    for (int i = 0; i < kGroup; ++i) to.q[i] |= (bits >> i & 1) << 4;
}

// A group that has its own block.
void read_group(Source source, const uint8_t* block, Group& to) {
    const bool has_minimum = source == Source::q4_1 || source == Source::q5_1;
    const uint8_t* body = block + (has_minimum ? 4 : 2);
    to.scale = read_half(block);
    to.minimum = has_minimum ? read_half(block + 2) : 0;
    if (source == Source::q8_0) {
        std::memcpy(to.q, body, kGroup);
    } else if (source == Source::q4_0 || source == Source::q4_1) {
        read_nibbles(body, to);
    } else {
        read_nibbles(body + 4, to);
        add_fifth_bits(body, to);
    }
}

// The 6-bit scale and minimum of group g of a Q4_K or Q5_K block: of the last four groups, the upper two bits lie
// with the first four.
void read_six_bits(const uint8_t* packed, int g, Group& to) {
    if (g < 4) {
        to.nested[0] = packed[g] & 63;
        to.nested[1] = packed[g + 4] & 63;
    } else {
        to.nested[0] = (packed[g + 4] & 15) | (packed[g - 4] >> 6 << 4);
        to.nested[1] = (packed[g + 4] >> 4) | (packed[g] >> 6 << 4);
    }
}

void read_q4_k(const uint8_t* block, Block& to) {
    to.scale = half_to_float(read_half(block));
    to.minimum = -half_to_float(read_half(block + 2));
    for (int g = 0; g < kNested; ++g) {
        Group& group = to.groups[g];
        read_six_bits(block + 4, g, group);
        const uint8_t* bytes = block + 16 + g / 2 * 32;
        for (int i = 0; i < kGroup; ++i) group.q[i] = g % 2 == 0 ? bytes[i] & 15 : bytes[i] >> 4;
    }
}

void read_q5_k(const uint8_t* block, Block& to) {
    to.scale = half_to_float(read_half(block));
    to.minimum = -half_to_float(read_half(block + 2));
    const uint8_t* high = block + 16;
    for (int g = 0; g < kNested; ++g) {
        Group& group = to.groups[g];
        read_six_bits(block + 4, g, group);
        const uint8_t* bytes = block + 48 + g / 2 * 32;
        for (int i = 0; i < kGroup; ++i) {
            group.q[i] = (g % 2 == 0 ? bytes[i] & 15 : bytes[i] >> 4) | (high[i] >> g & 1) << 4;
        }
    }
}

void read_q6_k(const uint8_t* block, Block& to) {
    to.scale = half_to_float(read_half(block + 208));
    for (int g = 0; g < kNested; ++g) {
        Group& group = to.groups[g];
        const int half = g / 4, part = g % 4;
        const uint8_t* low = block + 64 * half + 32 * (part % 2);
        const uint8_t* high = block + 128 + 32 * half;
        for (int i = 0; i < kGroup; ++i) {
            group.q[i] = (low[i] >> 4 * (part / 2) & 15) | (high[i] >> 2 * part & 3) << 4;
        }
        std::memcpy(group.nested, block + 192 + 2 * g, 2);
    }
}

// Levels in one stream of bits: eight of them lie in as many bytes as they have bits.
template <int kBits>
void read_stream(const uint8_t* bytes, uint8_t flip, uint8_t* q) {
    for (int first = 0; first < kGroup; first += 8, bytes += kBits) {
        uint64_t eight = 0;
        std::memcpy(&eight, bytes, kBits);
        for (int i = 0; i < 8; ++i) q[first + i] = (eight >> kBits * i & ((1 << kBits) - 1)) ^ flip;
    }
}

uint8_t to_level(float x, float inverse, int lowest, int highest) {
    constexpr float kWhole = 12582912.0f;  // 1.5 × 2^23: adding it rounds, as fast on any processor
    const float level = std::clamp(x * inverse, float(lowest), float(highest)) + kWhole - kWhole;
    return static_cast<uint8_t>(static_cast<int>(level));
}

float checked(float scale) {
    if (!(std::abs(scale) < 65504.0f)) {
        throw std::invalid_argument("weights are too large, or not finite, for a 16-bit scale");
    }
    return scale;
}

// That of a tiny scale would be infinite; its numbers are zero for all that follows.
float inverse_of(float scale) { return scale > 1e-35f ? 1.0f / scale : 0.0f; }

// The scale that reaches all of them with so many levels on either side of zero.
float scale_of(const float* x, int count, int levels) {
    float scale = 0.0f;
    for (int i = 0; i < count; ++i) scale = std::max(scale, checked(std::abs(x[i]) / float(levels)));
    return scale;
}

void round_q8(const float* x, Group& to) {
    to.scale = float_to_half(scale_of(x, kGroup, 127));
    const float inverse = inverse_of(half_to_float(to.scale));  // the levels belong to the rounded scale
    for (int i = 0; i < kGroup; ++i) to.q[i] = to_level(x[i], inverse, -127, 127);
}

void round_from_minimum(const float* x, int highest, Group& to) {
    float low = x[0], high = x[0];
    for (int i = 0; i < kGroup; ++i) {
        low = std::min(low, checked(x[i]));
        high = std::max(high, x[i]);
    }
    to.scale = float_to_half(checked((high - low) / float(highest)));
    to.minimum = float_to_half(low);
    const float minimum = half_to_float(to.minimum), inverse = inverse_of(half_to_float(to.scale));
    for (int i = 0; i < kGroup; ++i) to.q[i] = to_level(x[i] - minimum, inverse, 0, highest);
}

// Every 16 numbers have a scale, an integer times what the block shares.
void round_q6(const float* x, int64_t num_groups, Block& to) {
    constexpr int kHalf = kGroup / 2;
    to.scale = scale_of(x, int(num_groups) * kGroup, 31) / 127.0f;
    for (int64_t half = 0; half < 2 * num_groups; ++half, x += kHalf) {
        Group& group = to.groups[half / 2];
        const uint8_t scale = to_level(scale_of(x, kHalf, 31), inverse_of(to.scale), 0, 127);
        group.nested[half % 2] = scale;
        const float inverse = inverse_of(to.scale * scale);
        for (int i = 0; i < kHalf; ++i) group.q[half % 2 * kHalf + i] = to_level(x[i], inverse, -32, 31) + 32;
    }
}

}  // namespace

size_t row_bytes(Source source, int64_t inputs) {
    const Stored block = stored(source);
    if (inputs % block.numbers != 0) throw std::invalid_argument("rows do not fill whole blocks");
    return inputs / block.numbers * block.bytes;
}

Format format_of(Source source) {
    switch (source) {
        case Source::q4_0: case Source::q4_1: case Source::q4_k: return Format::q4;
        case Source::q5_0: case Source::q5_1: case Source::q5_k: return Format::q5;
        case Source::q6_k: return Format::q6;
        case Source::q8_0: return Format::q8;
        case Source::f16: return Format::f16;
        case Source::bf16: return Format::bf16;
        default: return Format::f32;
    }
}

Scales scales_of(Source source) {
    if (stored(source).numbers > kGroup) return Scales::nested;
    return source == Source::q4_1 || source == Source::q5_1 ? Scales::two : Scales::one;
}

void read_block(Source source, const uint8_t* row, int64_t first, int64_t stop, Block& to) {
    const Stored block = stored(source);
    row += first * kGroup / block.numbers * block.bytes;
    switch (source) {
        case Source::q4_k: return read_q4_k(row, to);
        case Source::q5_k: return read_q5_k(row, to);
        case Source::q6_k: return read_q6_k(row, to);
        default:
            for (int64_t g = 0; g < stop - first; ++g) read_group(source, row + g * block.bytes, to.groups[g]);
    }
}

void read_affine(Format format, const AffineRows& rows, int64_t row, int64_t first, int64_t stop, Block& to) {
    const int64_t group_bytes = kGroup * rows.bits / 8, row_groups = rows.inputs / rows.group;
    const uint8_t* from = rows.levels + (row * rows.inputs / kGroup + first) * group_bytes;
    const uint8_t flip = format == Format::q8 ? 0x80 : 0;  // 8 bits are signed
    for (int64_t g = first; g < stop; ++g, from += group_bytes) {
        Group& group = to.groups[g - first];
        const int64_t scale = row * row_groups + g * kGroup / rows.group;
        group.scale = read_half(rows.scales + 2 * scale);
        group.minimum = read_half(rows.minima + 2 * scale);
        switch (rows.bits) {
            case 2: read_stream<2>(from, flip, group.q); break;
            case 3: read_stream<3>(from, flip, group.q); break;
            case 4: read_stream<4>(from, flip, group.q); break;
            case 5: read_stream<5>(from, flip, group.q); break;
            case 6: read_stream<6>(from, flip, group.q); break;
            default: read_stream<8>(from, flip, group.q);
        }
    }
}

void round_block(Format format, const float* x, int64_t num_groups, Block& to) {
    if (format == Format::q6) return round_q6(x, num_groups, to);
    for (int64_t g = 0; g < num_groups; ++g, x += kGroup) {
        if (format == Format::q8) {
            round_q8(x, to.groups[g]);
        } else {
            round_from_minimum(x, format == Format::q4 ? 15 : 31, to.groups[g]);
        }
    }
}

void to_floats(Format format, Scales scales, const Block& block, int64_t num_groups, float* to) {
    for (int64_t g = 0; g < num_groups; ++g) {
        const Group& group = block.groups[g];
        const bool is_nested = scales == Scales::nested;
        const bool has_minimum = scales == Scales::two || scales == Scales::wide;
        float scale = is_nested ? block.scale * group.nested[0] : half_to_float(group.scale);
        if (format == Format::q8 && !has_minimum) {
            for (int i = 0; i < kGroup; ++i) *to++ = scale * static_cast<float>(static_cast<int8_t>(group.q[i]));
        } else if (format == Format::q6) {
            for (int i = 0; i < kGroup; ++i) {
                scale = block.scale * static_cast<int8_t>(group.nested[i / 16]);
                *to++ = scale * static_cast<float>(group.q[i] - 32);
            }
        } else {
            const uint8_t flip = format == Format::q8 ? 0x80 : 0;
            const float minimum = is_nested                ? block.minimum * group.nested[1]
                                  : has_minimum            ? half_to_float(group.minimum)
                                  : format == Format::q4   ? -8.0f * scale
                                                           : -16.0f * scale;
            for (int i = 0; i < kGroup; ++i) *to++ = scale * static_cast<float>(group.q[i] ^ flip) + minimum;
        }
    }
}

void read_floats(Source source, const uint8_t* row, int64_t first, int64_t count, float* to) {
    switch (source) {
        case Source::f32: std::memcpy(to, row + 4 * first, count * sizeof(float)); break;
        case Source::f16:
            for (int64_t i = 0; i < count; ++i) to[i] = half_to_float(read_half(row + 2 * (first + i)));
            break;
        case Source::bf16:
            for (int64_t i = 0; i < count; ++i) {
                to[i] = std::bit_cast<float>(uint32_t{read_half(row + 2 * (first + i))} << 16);
            }
            break;
        default: {
            constexpr int64_t kNumbers = kNested * kGroup;
            for (int64_t done = 0; done < count; done += kNumbers, first += kNumbers, to += kNumbers) {
                const int64_t num_groups = std::min(kNumbers, count - done) / kGroup;
                Block block;
                read_block(source, row, first / kGroup, first / kGroup + num_groups, block);
                to_floats(format_of(source), scales_of(source), block, num_groups, to);
            }
        }
    }
}

}  // namespace headlong
