// Binding of the picking steps.
#include <cmath>

#include <nanobind/stl/optional.h>

#include "bindings.hpp"
#include "pick.hpp"

namespace headlong {

namespace {
// Picking is exact on every instruction set, so it needs no engine to belong to.
const Kernels& best_kernels() {
    static const Kernels& kernels = pick_kernels("auto");
    return kernels;
}
}  // namespace

void bind_picking(nb::module_& module) {
    module.def("race", [](Row logits, std::optional<Ids> token_ids, double best, double temperature, uint64_t key) {
        require(logits.shape(0) > 0, "there are no logits");
        require(!token_ids || token_ids->shape(0) == logits.shape(0), "logits and token ids differ in number");
        require(std::isfinite(best) && temperature > 0, "the best logit must be finite, the temperature above 0");
        const Race race{logits.data(), token_ids ? token_ids->data() : nullptr,
                        static_cast<int64_t>(logits.shape(0)), best, temperature, key};
        const nb::gil_scoped_release release;
        return run_race(race, best_kernels());
    }, nb::arg("logits"), nb::arg("token_ids").none(), nb::arg("best"), nb::arg("temperature"), nb::arg("key"));
    module.def("sum_relative", [](Row logits, float best, float temperature) {
        require(std::isfinite(best) && temperature > 0, "the best logit must be finite, the temperature above 0");
        return best_kernels().sum_relative(logits.data(), logits.shape(0), best, temperature);
    }, nb::arg("logits"), nb::arg("best"), nb::arg("temperature"));
}

}  // namespace headlong
