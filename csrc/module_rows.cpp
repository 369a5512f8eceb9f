// Binding of packed rows.
#include <nanobind/stl/vector.h>

#include "bindings.hpp"
#include "packed_rows.hpp"

namespace headlong {

void bind_packed_rows(nb::module_& module) {
    nb::class_<PackedRows>(module, "PackedRows")
        .def("__init__", [](PackedRows* self, const std::vector<Input>& parts) {
            require(!parts.empty(), "there are no rows to pack");
            const size_t num_columns = parts.front().shape(1);
            int64_t num_rows = 0;
            for (const Input& part : parts) {
                require(part.shape(1) == num_columns, "rows differ in length");
                num_rows += part.shape(0);
            }
            new (self) PackedRows(num_rows, num_columns);
            const nb::gil_scoped_release release;
            int64_t row = 0;
            for (const Input& part : parts) {
                const float* numbers = part.data();
                for (size_t i = 0; i < part.shape(0); ++i, numbers += num_columns) self->write(row++, numbers, best_kernels());
            }
        }, nb::arg("parts"))
        .def("__len__", &PackedRows::num_rows)
        .def_prop_ro("shape", [](const PackedRows& self) { return nb::make_tuple(self.num_rows(), self.num_columns()); })
        .def_prop_ro("nbytes", &PackedRows::num_bytes)
        .def("read", [](const PackedRows& self, int64_t first, int64_t stop) {
            require(0 <= first && first <= stop && stop <= self.num_rows(), "there are not so many rows");
            const size_t num_rows = stop - first, num_columns = self.num_columns();
            auto* numbers = new float[num_rows * num_columns];
            nb::capsule owner(numbers, [](void* p) noexcept { delete[] static_cast<float*>(p); });
            {
                const nb::gil_scoped_release release;
                for (size_t i = 0; i < num_rows; ++i) self.read(first + i, numbers + i * num_columns);
            }
            return nb::ndarray<nb::numpy, float, nb::ndim<2>>(numbers, {num_rows, num_columns}, owner);
        }, nb::arg("first"), nb::arg("stop"));
}

}  // namespace headlong
