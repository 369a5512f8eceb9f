#include "packed_rows.hpp"

#include <algorithm>
#include <cstring>

namespace headlong {

void PackedRows::append(const float* numbers, int64_t num_rows, int64_t num_columns, const Kernels& kernels) {
    num_columns_ = num_columns;
    reserve(num_rows_ + num_rows);
    for (int64_t i = 0; i < num_rows; ++i, numbers += num_columns) write(num_rows_++, numbers, kernels);
}

void PackedRows::truncate(int64_t num_rows) {
    num_rows_ = num_rows;
    blocks_.resize(num_blocks(num_rows));
}

PackedRows PackedRows::first_rows(int64_t num_rows) const {
    PackedRows found;
    found.num_columns_ = num_columns_;
    found.reserve(num_rows);
    found.num_rows_ = num_rows;
    for (int64_t row = 0; row < num_rows; row += kBlockRows) {
        std::copy_n(at(row), std::min(kBlockRows, num_rows - row) * groups_per_row(), found.at(row));
    }
    return found;
}

void PackedRows::read(int64_t row, float* numbers) const {
    const Group* from = at(row);
    for (int64_t first = 0; first < num_columns_; first += kGroup, ++from) {
        const int64_t count = std::min<int64_t>(kGroup, num_columns_ - first);
        for (int64_t i = 0; i < count; ++i) numbers[first + i] = from->scale * static_cast<float>(from->q[i]);
    }
}

void PackedRows::reserve(int64_t num_rows) {
    while (int64_t(blocks_.size()) < num_blocks(num_rows)) {
        blocks_.push_back(std::make_unique_for_overwrite<Group[]>(groups_per_block()));
    }
}

void PackedRows::write(int64_t row, const float* numbers, const Kernels& kernels) {
    const int64_t num_whole = num_columns_ / kGroup;
    Group* to = at(row);
    const auto pack = [&](const float* from, int64_t num_groups) {
        ActGroup rounded[16];
        kernels.quantise(from, num_groups, rounded);
        for (int64_t g = 0; g < num_groups; ++g, ++to) {
            std::memcpy(to->q, rounded[g].q, kGroup);
            to->scale = rounded[g].scale;
        }
    };
    for (int64_t g = 0; g < num_whole; g += 16) pack(numbers + g * kGroup, std::min<int64_t>(16, num_whole - g));
    if (const int64_t num_left = num_columns_ - num_whole * kGroup; num_left > 0) {
        float last[kGroup] = {};
        std::memcpy(last, numbers + num_whole * kGroup, num_left * sizeof(float));
        pack(last, 1);
    }
}

}  // namespace headlong
