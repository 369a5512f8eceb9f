// Binding of packed rows.
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"
#include "packed_rows.hpp"

namespace headlong {

namespace {

using Part = std::tuple<PackedRows*, int64_t, int64_t>;  // where to, first row, stop

void check_rows(const PackedRows& rows, int64_t num_rows) {
    require(0 <= num_rows && num_rows <= rows.num_rows(), "there are not so many rows");
}

// Rows of one pass, to those they belong to. Half a microsecond a row: Python waits.
void hand_out(const Input& rows, const std::vector<Part>& parts) {
    const auto num_rows = static_cast<int64_t>(rows.shape(0)), num_columns = static_cast<int64_t>(rows.shape(1));
    for (const auto& [packed, first, stop] : parts) {
        require(packed != nullptr, "rows need somewhere to go");
        require(0 <= first && first <= stop && stop <= num_rows, "there are not so many rows");
        require(packed->num_rows() == 0 || packed->num_columns() == num_columns, "rows differ in length");
    }
    for (const auto& [packed, first, stop] : parts) {
        packed->append(rows.data() + first * num_columns, stop - first, num_columns, best_kernels());
    }
}

auto read(const PackedRows& self) {
    const size_t num_rows = self.num_rows(), num_columns = self.num_columns();
    auto* numbers = new float[num_rows * num_columns];
    nb::capsule owner(numbers, [](void* p) noexcept { delete[] static_cast<float*>(p); });
    {
        const nb::gil_scoped_release release;
        for (size_t i = 0; i < num_rows; ++i) self.read(i, numbers + i * num_columns);
    }
    return nb::ndarray<nb::numpy, float, nb::ndim<2>>(numbers, {num_rows, num_columns}, owner);
}

}  // namespace

void bind_packed_rows(nb::module_& module) {
    nb::class_<PackedRows>(module, "PackedRows")
        .def(nb::init<>())
        .def("__len__", &PackedRows::num_rows)
        .def("bytes_for", &PackedRows::bytes_for, nb::arg("num_rows"))
        .def("truncate", [](PackedRows& self, int64_t num_rows) {
            check_rows(self, num_rows);
            self.truncate(num_rows);
        }, nb::arg("num_rows"))
        .def("first_rows", [](const PackedRows& self, int64_t num_rows) {
            check_rows(self, num_rows);
            return self.first_rows(num_rows);
        }, nb::arg("num_rows"))
        .def("read", &read);
    module.def("pack_rows", &hand_out, nb::arg("rows"), nb::arg("parts"));
}

}  // namespace headlong
