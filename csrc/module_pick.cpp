// Binding of the picking steps.
#include <cmath>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"
#include "pick.hpp"

namespace headlong {

namespace {
bool has_nan(const Row& logits) {
    unsigned found = 0;  // without a way out, so that the compiler makes vectors of it
    for (size_t i = 0; i < logits.shape(0); ++i) found |= logits.data()[i] != logits.data()[i];
    return found != 0;
}

void check_row(const Row& logits, double best, double temperature) {
    require(logits.shape(0) > 0, "there are no logits");
    require(std::isfinite(best) && temperature > 0, "the best logit must be finite, the temperature above 0");
}
}  // namespace

void bind_picking(nb::module_& module) {
    nb::class_<PickRule>(module, "PickRule")
        .def("__init__", [](PickRule* rule, double temperature, int64_t top_k, double top_p, double min_p, uint64_t seed) {
            require(temperature >= 0 && top_k >= 0 && top_p > 0 && top_p <= 1 && min_p >= 0 && min_p <= 1,
                    "a sampling parameter is out of range");
            new (rule) PickRule{temperature, top_k, top_p, min_p, seed};
        }, nb::arg("temperature"), nb::arg("top_k"), nb::arg("top_p"), nb::arg("min_p"), nb::arg("seed"));
    module.def("race", [](Row logits, std::optional<Ids> token_ids, double best, double temperature, uint64_t key) {
        check_row(logits, best, temperature);
        require(!token_ids || token_ids->shape(0) == logits.shape(0), "logits and token ids differ in number");
        const Race race{logits.data(), token_ids ? token_ids->data() : nullptr,
                        static_cast<int64_t>(logits.shape(0)), best, temperature, key};
        const nb::gil_scoped_release release;
        return std::max<int64_t>(run_race(race, best_kernels()).column, 0);
    }, nb::arg("logits"), nb::arg("token_ids").none(), nb::arg("best"), nb::arg("temperature"), nb::arg("key"));
    module.def("pick", [](Row logits, const PickRule& rule, int64_t position) {
        require(logits.shape(0) > 0, "there are no logits");
        const nb::gil_scoped_release release;
        return pick_token(logits.data(), logits.shape(0), rule, position, best_kernels());
    }, nb::arg("logits"), nb::arg("rule"), nb::arg("position"));
    module.def("surviving_columns", [](Row logits, double best, const PickRule& rule) {
        check_row(logits, best, rule.temperature);
        auto* columns = new std::vector<int64_t>;
        nb::capsule owner(columns, [](void* p) noexcept { delete static_cast<std::vector<int64_t>*>(p); });
        {
            const nb::gil_scoped_release release;
            // What is no number has no rank, and would lead a sort out of its array.
            require(!has_nan(logits), "a logit is not a number");
            *columns = surviving_columns(logits.data(), logits.shape(0), best, rule, best_kernels());
        }
        return nb::ndarray<nb::numpy, int64_t, nb::ndim<1>>(columns->data(), {columns->size()}, owner);
    }, nb::arg("logits"), nb::arg("best"), nb::arg("rule"));
    module.def("sum_relative", [](Row logits, double best, double temperature) {
        require(std::isfinite(best) && temperature > 0, "the best logit must be finite, the temperature above 0");
        return sum_relative(logits.data(), logits.shape(0), best, temperature, best_kernels());
    }, nb::arg("logits"), nb::arg("best"), nb::arg("temperature"));
}

}  // namespace headlong
