// From the bytes of a model file to packed tiles, and single rows back to floats.
#pragma once

#include <cstdint>

#include "formats.hpp"
#include "kernels.hpp"
#include "levels.hpp"
#include "pool.hpp"

namespace headlong {

// An empty matrix of this format; throws std::invalid_argument when its inputs do not fill groups, or when such
// numbers have no such scales. `unit` multiplies all scales.
Matrix make_matrix(
    Arena& arena, const Kernels& kernels, Format format, Scales scales, int64_t outputs, int64_t inputs, float unit);

// Put rows `first_row`… into the matrix, with the whole team: bit for bit where format and scales are those of the
// source, else to nearest. Throws std::invalid_argument for numbers that the format cannot hold.
void pack_rows(
    Matrix& m, const Kernels& kernels, Pool& pool, Source source, int64_t first_row, int64_t num_rows,
    const uint8_t* data);

// The same for rows as MLX packs them, into 4, 5 or 8 bits with a scale and a minimum; bit for bit.
void pack_affine(
    Matrix& m, const Kernels& kernels, Pool& pool, const AffineRows& source, int64_t first_row, int64_t num_rows);

// Write one row of the matrix as floats, exactly what its numbers mean.
void unpack_row(const Matrix& m, const Kernels& kernels, int64_t row, float* out);

}  // namespace headlong
