#include "pack.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <vector>

#include "simd_portable.hpp"

namespace headlong {

namespace {

// Where the numbers of one output lie.
struct Place {
    uint8_t* shared;
    uint8_t* scales;
    uint8_t* weights;  // the first quad; the others are `width` * 4 bytes apart
};

Place place(const Matrix& m, int64_t output, int64_t group) {
    const TileLayout layout = m.layout();
    const size_t lane = output % m.width, odd = group % 2;
    uint8_t* tile = m.data.bytes + output / m.width * m.tile_bytes;
    uint8_t* block = tile + group / kNested * (layout.shared + kNested / 2 * layout.pair());
    uint8_t* pair = block + layout.shared + group % kNested / 2 * layout.pair();
    const size_t own = m.scales == Scales::wide ? 0 : odd * layout.scales;
    return {block, pair + own, pair + 2 * layout.scales + odd * layout.weights + 4 * lane};
}

bool has_own_minima(const Matrix& m) { return m.scales == Scales::two || m.scales == Scales::wide; }

void put_half(uint8_t* at, size_t index, uint16_t half) { std::memcpy(at + 2 * index, &half, 2); }

uint16_t get_half(const uint8_t* at, size_t index) {
    uint16_t half;
    std::memcpy(&half, at + 2 * index, 2);
    return half;
}

uint32_t get_quad(const uint8_t* at) {
    uint32_t four;
    std::memcpy(&four, at, 4);
    return four;
}

void put_scales(const Matrix& m, const Block& block, const Group& group, size_t lane, const Place& at) {
    if (m.scales != Scales::nested) {
        put_half(at.scales, lane, group.scale);
        if (has_own_minima(m)) put_half(at.scales, m.width + lane, group.minimum);
        return;
    }
    at.scales[lane] = group.nested[0];
    at.scales[m.width + lane] = group.nested[1];
    if (m.format == Format::q6) {
        std::memcpy(at.shared + 4 * lane, &block.scale, 4);
    } else {  // they were binary16 in the file, or are to be
        put_half(at.shared, lane, float_to_half(block.scale));
        put_half(at.shared, m.width + lane, float_to_half(block.minimum));
    }
}

void get_scales(const Matrix& m, const Place& at, size_t lane, Block& block, Group& group) {
    if (m.scales != Scales::nested) {
        group.scale = get_half(at.scales, lane);
        if (has_own_minima(m)) group.minimum = get_half(at.scales, m.width + lane);
        return;
    }
    group.nested[0] = at.scales[lane];
    group.nested[1] = at.scales[m.width + lane];
    if (m.format == Format::q6) {
        std::memcpy(&block.scale, at.shared + 4 * lane, 4);
    } else {
        block.scale = half_to_float(get_half(at.shared, lane));
        block.minimum = half_to_float(get_half(at.shared, m.width + lane));
    }
}

// Low nibbles and planes of one group; see formats.hpp.
template <int kBits>
void put_weights(const uint8_t* q, uint8_t flip, size_t step, uint8_t* at) {
    constexpr uint32_t kLow = 0x0f0f0f0fu;
    for (int v = 0; v < (kBits == 8 ? 8 : 4); ++v) {
        const uint32_t own = get_quad(q + 4 * v);
        uint32_t four = own ^ flip * 0x01010101u;
        if constexpr (kBits < 8) four = (own & kLow) | (get_quad(q + 4 * v + 16) & kLow) << 4;
        std::memcpy(at + v * step, &four, 4);
    }
    if constexpr (kBits == 5 || kBits == 6) {
        constexpr int kQuads = kBits == 5 ? 8 : 4, kShift = kBits - 4;  // of a plane
        constexpr uint32_t kMask = kBits == 5 ? 0x01010101u : 0x03030303u;
        for (int plane = 0; plane < 8 / kQuads; ++plane) {
            uint32_t four = 0;
            for (int v = 0; v < kQuads; ++v) {
                four |= (get_quad(q + 4 * (plane * kQuads + v)) >> 4 & kMask) << kShift * v;
            }
            std::memcpy(at + (4 + plane) * step, &four, 4);
        }
    }
}

// Number i of a group.
uint8_t get_level(Format format, const uint8_t* weights, size_t step, uint8_t flip, int i) {
    const int quad = i / 4, byte = i % 4;
    if (format == Format::q8) return weights[quad * step + byte] ^ flip;
    const int low = weights[quad % 4 * step + byte] >> quad / 4 * 4 & 15;
    if (format == Format::q4) return low;
    if (format == Format::q5) return low | (weights[4 * step + byte] >> quad & 1) << 4;
    return low | (weights[(4 + quad / 4) * step + byte] >> quad % 4 * 2 & 3) << 4;
}

void put_block(Matrix& m, uint8_t flip, int64_t output, int64_t first, int64_t stop, const Block& block) {
    const size_t lane = output % m.width, step = 4 * m.width;
    for (int64_t g = first; g < stop; ++g) {
        const Group& group = block.groups[g - first];
        const Place to = place(m, output, g);
        put_scales(m, block, group, lane, to);
        switch (m.format) {
            case Format::q4: put_weights<4>(group.q, flip, step, to.weights); break;
            case Format::q5: put_weights<5>(group.q, flip, step, to.weights); break;
            case Format::q6: put_weights<6>(group.q, flip, step, to.weights); break;
            default: put_weights<8>(group.q, flip, step, to.weights);
        }
    }
}

// Rows that lie in one tile, block of groups by block: the bytes written stay near each other.
void pack_groups(Matrix& m, uint8_t flip, Source source, Range rows, size_t step, const uint8_t* data) {
    const bool is_same = format_of(source) == m.format && scales_of(source) == m.scales;
    Block block;
    for (int64_t first = 0; first < m.num_groups(); first += kNested) {
        const int64_t stop = std::min<int64_t>(m.num_groups(), first + kNested);
        for (int64_t r = rows.first; r < rows.stop; ++r) {
            const uint8_t* row = data + (r - rows.first) * step;
            if (is_same) {
                read_block(source, row, first, stop, block);
            } else {
                float x[kNested * kGroup];
                read_floats(source, row, first * kGroup, (stop - first) * kGroup, x);
                round_block(m.format, x, stop - first, block);
            }
            put_block(m, flip, r, first, stop, block);
        }
    }
}

uint32_t encode(Format format, float x) {
    if (format == Format::f32) return std::bit_cast<uint32_t>(x);
    if (format == Format::f16) return float_to_half(x);
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

// Rows that lie in one tile, some columns at a time, for the same reason.
template <class T>
void pack_floats(Matrix& m, Source source, Range rows, size_t step, const uint8_t* data) {
    constexpr int64_t kColumns = kNested * kGroup;
    const bool is_same = format_of(source) == m.format;
    auto* tile = reinterpret_cast<T*>(m.data.bytes + rows.first / m.width * m.tile_bytes);
    for (int64_t first = 0; first < m.inputs; first += kColumns) {
        const int64_t count = std::min(kColumns, m.inputs - first);
        for (int64_t r = rows.first; r < rows.stop; ++r) {
            const uint8_t* row = data + (r - rows.first) * step;
            T* to = tile + first * m.width + r % m.width;
            T numbers[kColumns];
            if (is_same) {
                std::memcpy(numbers, row + first * sizeof(T), count * sizeof(T));
            } else {
                float x[kColumns];
                read_floats(source, row, first, count, x);
                for (int64_t k = 0; k < count; ++k) numbers[k] = static_cast<T>(encode(m.format, x[k]));
            }
            for (int64_t k = 0; k < count; ++k) to[k * m.width] = numbers[k];
        }
    }
}

bool can_have(Format format, Scales scales) {
    if (format == Format::q6) return scales == Scales::nested;
    return format <= Format::q5 || scales == Scales::one || (format == Format::q8 && scales != Scales::nested);
}

// Call `pack` with the rows of every tile that has some of these, shared out over the whole team.
template <class Pack>
void for_tiles(const Matrix& m, Pool& pool, int64_t first_row, int64_t num_rows, Pack&& pack) {
    if (first_row < 0 || num_rows < 0 || first_row > m.outputs - num_rows) {
        throw std::invalid_argument("rows are outside the matrix");
    }
    const int64_t stop_row = first_row + num_rows, first_tile = first_row / m.width;
    std::vector<std::exception_ptr> faults(pool.num_threads());  // a worker must not throw
    pool.run([&](Worker& worker) {
        try {
            const Range tiles = worker.share(ceil_div(stop_row, m.width) - first_tile);
            for (int64_t tile = first_tile + tiles.first; tile < first_tile + tiles.stop; ++tile) {
                pack(Range{std::max(first_row, tile * m.width), std::min(stop_row, (tile + 1) * m.width)});
            }
        } catch (...) {
            faults[worker.index] = std::current_exception();
        }
    });
    for (const std::exception_ptr& fault : faults) {
        if (fault) std::rethrow_exception(fault);
    }
}

uint8_t flip_of(const Matrix& m, const Kernels& kernels) {
    return m.format == Format::q8 && kernels.has_unsigned_q8 ? 0x80 : 0;
}

}  // namespace

Matrix make_matrix(
    Arena& arena, const Kernels& kernels, Format format, Scales scales, int64_t outputs, int64_t inputs, float unit) {
    if (outputs < 1 || inputs < 1 || outputs > int64_t{1} << 31 || inputs > int64_t{1} << 31) {
        throw std::invalid_argument("a matrix needs from 1 to 2**31 rows and columns");
    }
    if (!can_have(format, scales)) throw std::invalid_argument("this format has other scales");
    const int width = kernels.tile_width;
    Matrix m{format, scales, outputs, inputs, unit, width, ceil_div(outputs, width), 0, {}};
    if (m.is_quantised()) {
        if (inputs % kGroup != 0) throw std::invalid_argument("quantised rows need groups of 32 numbers");
        if (scales == Scales::wide && inputs % (2 * kGroup) != 0) {
            throw std::invalid_argument("scales of 64 numbers need rows of whole groups");
        }
        m.tile_bytes = m.layout().tile(m.num_groups());
    } else {
        m.tile_bytes = size_t(inputs) * m.width * (format == Format::f32 ? 4 : 2);
    }
    // The kernels prefetch past the end, which is harmless; they never read there.
    m.data = arena.take(m.num_tiles * m.tile_bytes);
    return m;
}

void pack_rows(
    Matrix& m, const Kernels& kernels, Pool& pool, Source source, int64_t first_row, int64_t num_rows,
    const uint8_t* data) {
    if (m.scales == Scales::wide || (m.format == Format::q8 && m.scales == Scales::two)) {
        throw std::invalid_argument("only rows of MLX files have such scales");
    }
    const size_t step = row_bytes(source, m.inputs);
    const uint8_t flip = flip_of(m, kernels);
    for_tiles(m, pool, first_row, num_rows, [&](Range rows) {
        const uint8_t* from = data + (rows.first - first_row) * step;
        if (m.is_quantised()) {
            pack_groups(m, flip, source, rows, step, from);
        } else if (m.format == Format::f32) {
            pack_floats<uint32_t>(m, source, rows, step, from);
        } else {
            pack_floats<uint16_t>(m, source, rows, step, from);
        }
    });
}

void pack_affine(
    Matrix& m, const Kernels& kernels, Pool& pool, const AffineRows& source, int64_t first_row, int64_t num_rows) {
    const int most = m.format == Format::q4 ? 4 : m.format == Format::q5 ? 5 : m.format == Format::q8 ? 8 : 0;
    if (source.bits < 2 || source.bits == 7 || source.bits > most || !has_own_minima(m)) {
        throw std::invalid_argument("this format does not hold such levels");
    }
    const int64_t shared = m.scales == Scales::wide ? 2 * kGroup : kGroup;
    if (source.group < 1 || source.group % shared != 0 || m.inputs % source.group != 0) {
        throw std::invalid_argument("this format does not hold groups of that size");
    }
    const uint8_t flip = flip_of(m, kernels);
    for_tiles(m, pool, first_row, num_rows, [&](Range rows) {
        Block block;
        for (int64_t first = 0; first < m.num_groups(); first += kNested) {
            const int64_t stop = std::min<int64_t>(m.num_groups(), first + kNested);
            for (int64_t r = rows.first; r < rows.stop; ++r) {
                read_affine(m.format, source, r - first_row, first, stop, block);
                put_block(m, flip, r, first, stop, block);
            }
        }
    });
}

void unpack_row(const Matrix& m, const Kernels& kernels, int64_t row, float* out) {
    if (!m.is_quantised()) {
        const size_t size = m.format == Format::f32 ? 4 : 2;
        const uint8_t* from = m.tile(row / m.width) + row % m.width * size;
        const Source source = m.format == Format::f32   ? Source::f32
                              : m.format == Format::f16 ? Source::f16
                                                        : Source::bf16;
        for (int64_t k = 0; k < m.inputs; ++k, from += m.width * size) read_floats(source, from, 0, 1, out + k);
        return;
    }
    const size_t lane = row % m.width, step = 4 * m.width;
    const uint8_t flip = kernels.has_unsigned_q8 ? 0x80 : 0;
    Block block;
    for (int64_t g = 0; g < m.num_groups(); ++g, out += kGroup) {
        const Place from = place(m, row, g);
        Group& group = block.groups[0];
        get_scales(m, from, lane, block, group);
        for (int i = 0; i < kGroup; ++i) group.q[i] = get_level(m.format, from.weights, step, flip, i);
        to_floats(m.format, m.scales, block, 1, out);
        if (m.unit != 1.0f) std::for_each(out, out + kGroup, [&](float& number) { number *= m.unit; });
    }
}

}  // namespace headlong
