#include "packed_rows.hpp"

#include <algorithm>
#include <cstring>

namespace headlong {

PackedRows::PackedRows(int64_t num_rows, int64_t num_columns)
    : num_rows_(num_rows), num_columns_(num_columns),
      groups_(std::make_unique_for_overwrite<Group[]>(num_rows * groups_per_row())) {}

void PackedRows::write(int64_t row, const float* numbers, const Kernels& kernels) {
    const int64_t num_whole = num_columns_ / kGroup;
    Group* to = groups_.get() + row * groups_per_row();
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

void PackedRows::read(int64_t row, float* numbers) const {
    const Group* from = groups_.get() + row * groups_per_row();
    for (int64_t first = 0; first < num_columns_; first += kGroup, ++from) {
        const int64_t count = std::min<int64_t>(kGroup, num_columns_ - first);
        for (int64_t i = 0; i < count; ++i) numbers[first + i] = from->scale * static_cast<float>(from->q[i]);
    }
}

}  // namespace headlong
