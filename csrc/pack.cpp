#include "pack.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "simd_portable.hpp"

namespace headlong {

namespace {

constexpr int kSuper = 256;  // numbers of a K-quant block

// One group of quantised weights on its way into a tile.
struct Group {
    uint16_t scale = 0;    // binary16
    uint16_t minimum = 0;  // binary16, 4-bit only
    uint8_t q[kGroup];     // 4-bit: two halves as nibbles in 16 bytes, as GGUF has them
};

size_t scales_per_group(const Matrix& m) { return m.format == Format::q4 ? 2 * m.width : m.width; }
size_t weight_bytes(const Matrix& m) { return size_t(m.width) * kGroup / (m.format == Format::q4 ? 2 : 1); }
size_t pair_bytes(const Matrix& m) { return 2 * (2 * scales_per_group(m) + weight_bytes(m)); }

struct Place { uint16_t* scales; uint8_t* weights; };

// Where a group of an output starts; its quads are `width` * 4 bytes apart.
Place place(const Matrix& m, int64_t output, int64_t group) {
    uint8_t* tile = m.data.bytes + output / m.width * m.tile_bytes;
    uint8_t* pair = tile + group / 2 * pair_bytes(m);
    const size_t lane = output % m.width, half = group % 2;
    uint8_t* weights = pair + 4 * scales_per_group(m) + half * weight_bytes(m) + lane * 4;
    return {reinterpret_cast<uint16_t*>(pair) + half * scales_per_group(m) + lane, weights};
}

void put(Matrix& m, uint8_t flip, int64_t output, int64_t group, const Group& from) {
    const Place to = place(m, output, group);
    to.scales[0] = from.scale;
    if (m.format == Format::q4) to.scales[m.width] = from.minimum;
    const int num_quads = m.format == Format::q4 ? 4 : 8;
    for (int quad = 0; quad < num_quads; ++quad) {
        uint32_t four;
        std::memcpy(&four, from.q + 4 * quad, 4);
        four ^= flip * 0x01010101u;
        std::memcpy(to.weights + size_t(quad) * m.width * 4, &four, 4);
    }
}

uint16_t read_half(const uint8_t* p) {
    uint16_t half;
    std::memcpy(&half, p, 2);
    return half;
}

Group read_q4_0(const uint8_t* block) {
    Group group{read_half(block), 0, {}};
    // (q - 8) * d is q * d + m with m = -8 d, which is exact in binary16 unless d is enormous.
    group.minimum = float_to_half(-8.0f * half_to_float(group.scale));
    std::memcpy(group.q, block + 2, 16);
    return group;
}

Group read_q4_1(const uint8_t* block) {
    Group group{read_half(block), read_half(block + 2), {}};
    std::memcpy(group.q, block + 4, 16);
    return group;
}

Group read_q8_0(const uint8_t* block) {
    Group group{read_half(block), 0, {}};
    std::memcpy(group.q, block + 2, 32);
    return group;
}

// Group `index` (0…7) of a Q4_K block: its 6-bit scale and minimum become one binary16 each.
Group read_q4_k(const uint8_t* block, int index) {
    const uint8_t* packed = block + 4;
    int scale, minimum;
    if (index < 4) {
        scale = packed[index] & 63;
        minimum = packed[index + 4] & 63;
    } else {
        scale = (packed[index + 4] & 15) | (packed[index - 4] >> 6 << 4);
        minimum = (packed[index + 4] >> 4) | (packed[index] >> 6 << 4);
    }
    Group group;
    group.scale = float_to_half(half_to_float(read_half(block)) * scale);
    group.minimum = float_to_half(-half_to_float(read_half(block + 2)) * minimum);
    const uint8_t* bytes = block + 16 + index / 2 * 32;
    const int shift = index % 2 * 4;
    for (int i = 0; i < 16; ++i) {
        group.q[i] = (bytes[i] >> shift & 15) | (bytes[i + 16] >> shift & 15) << 4;
    }
    return group;
}

int to_level(float x, float inverse, int lowest, int highest) {
    const float level = std::nearbyint(x * inverse);
    return static_cast<int>(std::clamp(level, float(lowest), float(highest)));
}

float checked(float scale) {
    if (!(std::abs(scale) < 65504.0f)) {
        throw std::invalid_argument("weights are too large, or not finite, for a 16-bit scale");
    }
    return scale;
}

Group quantise_q8(const float* x) {
    float largest = 0.0f;
    for (int i = 0; i < kGroup; ++i) largest = std::max(largest, checked(std::abs(x[i]) / 127.0f));
    Group group{float_to_half(largest), 0, {}};
    const float scale = half_to_float(group.scale);  // the levels belong to the rounded scale
    const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
    for (int i = 0; i < kGroup; ++i) {
        group.q[i] = static_cast<uint8_t>(static_cast<int8_t>(to_level(x[i], inverse, -127, 127)));
    }
    return group;
}

Group quantise_q4(const float* x) {
    float low = x[0], high = x[0];
    for (int i = 0; i < kGroup; ++i) {
        low = std::min(low, checked(x[i]));
        high = std::max(high, x[i]);
    }
    Group group{float_to_half(checked((high - low) / 15.0f)), float_to_half(low), {}};
    const float scale = half_to_float(group.scale), minimum = half_to_float(group.minimum);
    const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
    for (int i = 0; i < 16; ++i) {
        const int first = to_level(x[i] - minimum, inverse, 0, 15);
        const int second = to_level(x[i + 16] - minimum, inverse, 0, 15);
        group.q[i] = static_cast<uint8_t>(first | second << 4);
    }
    return group;
}

void pack_group_rows(Matrix& m, uint8_t flip, Source source, int64_t output, const uint8_t* row) {
    for (int64_t g = 0; g < m.num_groups(); ++g) {
        switch (source) {
            case Source::q4_0: put(m, flip, output, g, read_q4_0(row + g * 18)); break;
            case Source::q4_1: put(m, flip, output, g, read_q4_1(row + g * 20)); break;
            case Source::q8_0: put(m, flip, output, g, read_q8_0(row + g * 34)); break;
            case Source::q4_k: put(m, flip, output, g, read_q4_k(row + g / 8 * 144, int(g % 8))); break;
            default: {
                float x[kGroup];
                std::memcpy(x, row + g * sizeof x, sizeof x);
                put(m, flip, output, g, m.format == Format::q4 ? quantise_q4(x) : quantise_q8(x));
            }
        }
    }
}

uint32_t encode(Format format, float x) {
    if (format == Format::f32) return std::bit_cast<uint32_t>(x);
    if (format == Format::f16) return float_to_half(x);
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

void pack_float_row(Matrix& m, Source source, int64_t output, const uint8_t* row) {
    const size_t size = m.format == Format::f32 ? 4 : 2;
    const size_t source_size = source == Source::f32 ? 4 : 2;
    const bool is_same = (source == Source::f32) == (m.format == Format::f32) &&
                         (source == Source::bf16) == (m.format == Format::bf16);
    uint8_t* to = m.data.bytes + output / m.width * m.tile_bytes + output % m.width * size;
    for (int64_t k = 0; k < m.inputs; ++k, to += m.width * size) {
        if (is_same) {
            std::memcpy(to, row + k * size, size);
            continue;
        }
        float x;
        std::memcpy(&x, row + k * source_size, 4);
        const uint32_t encoded = encode(m.format, x);
        std::memcpy(to, &encoded, size);  // little endian: the low bytes come first
    }
}

bool fits(Format format, Source source) {
    if (source == Source::f32) return true;
    switch (format) {
        case Format::q4:
            return source == Source::q4_0 || source == Source::q4_1 || source == Source::q4_k;
        case Format::q8: return source == Source::q8_0;
        case Format::f16: return source == Source::f16;
        case Format::bf16: return source == Source::bf16;
        case Format::f32: return false;
    }
    return false;
}

}  // namespace

size_t row_bytes(Source source, int64_t inputs) {
    struct Block { int64_t numbers; size_t bytes; };
    const Block block = source == Source::q4_0   ? Block{kGroup, 18}
                        : source == Source::q4_1 ? Block{kGroup, 20}
                        : source == Source::q8_0 ? Block{kGroup, 34}
                        : source == Source::q4_k ? Block{kSuper, 144}
                        : source == Source::f32  ? Block{1, 4}
                                                 : Block{1, 2};
    if (inputs % block.numbers != 0) throw std::invalid_argument("rows do not fill whole blocks");
    return inputs / block.numbers * block.bytes;
}

Matrix make_matrix(Arena& arena, const Kernels& kernels, Format format, int64_t outputs, int64_t inputs) {
    if (outputs < 1 || inputs < 1 || outputs > int64_t{1} << 31 || inputs > int64_t{1} << 31) {
        throw std::invalid_argument("a matrix needs from 1 to 2**31 rows and columns");
    }
    const int width = kernels.tile_width;
    Matrix m{format, outputs, inputs, width, ceil_div(outputs, width), 0, {}};
    if (m.is_quantised()) {
        if (inputs % kGroup != 0) throw std::invalid_argument("quantised rows need groups of 32 numbers");
        m.tile_bytes = (m.num_groups() + 1) / 2 * pair_bytes(m);
    } else {
        m.tile_bytes = size_t(inputs) * m.width * (format == Format::f32 ? 4 : 2);
    }
    // The kernels prefetch past the end, which is harmless; they never read there.
    m.data = arena.take(m.num_tiles * m.tile_bytes);
    return m;
}

void pack_rows(
    Matrix& m, const Kernels& kernels, Source source, int64_t first_row, int64_t num_rows,
    const uint8_t* data) {
    if (!fits(m.format, source)) throw std::invalid_argument("this source does not go into this format");
    if (first_row < 0 || num_rows < 0 || first_row > m.outputs - num_rows) {
        throw std::invalid_argument("rows are outside the matrix");
    }
    const size_t step = row_bytes(source, m.inputs);
    const uint8_t flip = m.format == Format::q8 && kernels.has_unsigned_q8 ? 0x80 : 0;
    for (int64_t r = 0; r < num_rows; ++r) {
        if (m.is_quantised()) {
            pack_group_rows(m, flip, source, first_row + r, data + r * step);
        } else {
            pack_float_row(m, source, first_row + r, data + r * step);
        }
    }
}

void unpack_row(const Matrix& m, const Kernels& kernels, int64_t row, float* out) {
    if (!m.is_quantised()) {
        const size_t size = m.format == Format::f32 ? 4 : 2;
        const uint8_t* from = m.tile(row / m.width) + row % m.width * size;
        for (int64_t k = 0; k < m.inputs; ++k, from += m.width * size) {
            if (m.format == Format::f32) {
                std::memcpy(out + k, from, 4);
            } else {
                const uint16_t half = read_half(from);
                out[k] = m.format == Format::f16 ? half_to_float(half)
                                                 : std::bit_cast<float>(uint32_t{half} << 16);
            }
        }
        return;
    }
    const uint8_t flip = kernels.has_unsigned_q8 ? 0x80 : 0;
    for (int64_t g = 0; g < m.num_groups(); ++g) {
        const Place from = place(m, row, g);
        const float scale = half_to_float(from.scales[0]);
        float* to = out + g * kGroup;
        if (m.format == Format::q8) {
            for (int i = 0; i < kGroup; ++i) {
                const uint8_t byte = from.weights[size_t(i / 4) * m.width * 4 + i % 4] ^ flip;
                to[i] = scale * static_cast<float>(static_cast<int8_t>(byte));
            }
            continue;
        }
        const float minimum = half_to_float(from.scales[m.width]);
        for (int i = 0; i < kGroup / 2; ++i) {
            const uint8_t byte = from.weights[size_t(i / 4) * m.width * 4 + i % 4];
            to[i] = scale * static_cast<float>(byte & 15) + minimum;
            to[i + kGroup / 2] = scale * static_cast<float>(byte >> 4) + minimum;
        }
    }
}

}  // namespace headlong
