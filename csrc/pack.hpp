// From the bytes of a model file to packed tiles, and single rows back to floats.
#pragma once

#include <cstdint>
#include <string>

#include "formats.hpp"
#include "kernels.hpp"

namespace headlong {

// How the rows handed to a packer are encoded: as in GGUF files, or plain floats.
enum class Source { q4_0, q4_1, q4_k, q8_0, f16, bf16, f32 };

// Bytes of one row of `inputs` numbers; throws std::invalid_argument if they do not fill blocks.
size_t row_bytes(Source source, int64_t inputs);

// An empty matrix of this format; throws std::invalid_argument when its inputs do not fill groups.
Matrix make_matrix(Arena& arena, const Kernels& kernels, Format format, int64_t outputs, int64_t inputs);

// Put rows `first_row`… into the matrix. 4-bit and 8-bit sources go into their own format bit for
// bit; floats go into any format, to nearest. Throws std::invalid_argument for other pairs.
void pack_rows(
    Matrix& m, const Kernels& kernels, Source source, int64_t first_row, int64_t num_rows,
    const uint8_t* data);

// Write one row of the matrix as floats, exactly what its numbers mean.
void unpack_row(const Matrix& m, const Kernels& kernels, int64_t row, float* out);

}  // namespace headlong
