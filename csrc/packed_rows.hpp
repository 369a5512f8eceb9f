// Rows of numbers in 8 bits, with a scale for every 32 of them: less than a third of their bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels.hpp"

namespace headlong {

// For rows that wait, and may have to for long. A projection rounds what it reads in the same way, so it reads the
// same numbers afterwards, up to the last bit of a scale.
class PackedRows {
public:
    PackedRows() = default;
    PackedRows(PackedRows&&) = default;  // and no copies

    int64_t num_rows() const { return num_rows_; }
    int64_t num_columns() const { return num_columns_; }
    // What so many rows take; nothing before the first ones have told how long they are.
    size_t bytes_for(int64_t num_rows) const { return num_blocks(num_rows) * groups_per_block() * sizeof(Group); }

    // All rows are as long as the first ones.
    void append(const float* numbers, int64_t num_rows, int64_t num_columns, const Kernels& kernels);
    void truncate(int64_t num_rows);
    PackedRows first_rows(int64_t num_rows) const;
    void read(int64_t row, float* numbers) const;

private:
    struct Group { int8_t q[kGroup]; float scale; };
    static_assert(sizeof(Group) == 36);
    static constexpr int64_t kBlockRows = 32;  // so that growing copies nothing

    static int64_t num_blocks(int64_t num_rows) { return ceil_div(num_rows, kBlockRows); }
    int64_t groups_per_row() const { return ceil_div(num_columns_, kGroup); }
    int64_t groups_per_block() const { return kBlockRows * groups_per_row(); }
    Group* at(int64_t row) const { return blocks_[row / kBlockRows].get() + row % kBlockRows * groups_per_row(); }
    void reserve(int64_t num_rows);
    void write(int64_t row, const float* numbers, const Kernels& kernels);

    int64_t num_rows_ = 0;
    int64_t num_columns_ = 0;
    std::vector<std::unique_ptr<Group[]>> blocks_;  // (rows, groups of a row); a row's last group is filled up with zeros
};

}  // namespace headlong
