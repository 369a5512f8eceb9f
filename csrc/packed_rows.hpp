// Rows of numbers in 8 bits, with a scale for every 32 of them: less than a third of their bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels.hpp"

namespace headlong {

// For rows that may have to wait for long. A projection rounds what it reads in the same way, so it reads the same
// numbers afterwards, up to the last bit of a scale.
class PackedRows {
public:
    PackedRows(int64_t num_rows, int64_t num_columns);

    int64_t num_rows() const { return num_rows_; }
    int64_t num_columns() const { return num_columns_; }
    size_t num_bytes() const { return num_rows_ * bytes_per_row(); }

    void write(int64_t row, const float* numbers, const Kernels& kernels);
    void read(int64_t row, float* numbers) const;

private:
    struct Group { int8_t q[kGroup]; float scale; };
    static_assert(sizeof(Group) == 36);

    int64_t groups_per_row() const { return (num_columns_ + kGroup - 1) / kGroup; }
    size_t bytes_per_row() const { return groups_per_row() * sizeof(Group); }

    int64_t num_rows_;
    int64_t num_columns_;
    std::unique_ptr<Group[]> groups_;  // (rows, groups of a row); the last group of a row is filled up with zeros
};

}  // namespace headlong
