// Binding of the token index.
#include <nanobind/stl/vector.h>

#include "bindings.hpp"
#include "token_index.hpp"

namespace headlong {

void bind_index(nb::module_& module) {
    nb::class_<TokenIndex>(module, "TokenIndex")
        .def(nb::init<>())
        .def("find", [](TokenIndex& self, const nb::list& history, int64_t min_length, const std::vector<int32_t>& assumed)
            -> nb::object {
            const int64_t num_tokens = static_cast<int64_t>(history.size());
            require(num_tokens >= self.num_tokens(), "a history only ever grows");
            require(num_tokens < kMaxPositions, "a history is too long");
            for (int64_t i = self.num_tokens(); i < num_tokens; ++i) self.push(nb::cast<int32_t>(history[i]));
            const auto found = self.find(min_length, assumed);
            if (!found) return nb::none();
            return nb::make_tuple(found->end, found->length);
        }, nb::arg("history"), nb::arg("min_length"), nb::arg("assumed"));
}

}  // namespace headlong
