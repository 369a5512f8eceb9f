// Binding of the channel parts: dense MLPs and mixtures of experts.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"
#include "experts.hpp"

namespace headlong {

namespace {

using MlpTuple = std::tuple<std::optional<Linear>, Linear, Linear>;  // gate, up, down

Activation activation_named(const std::string& name) {
    if (name == "silu") return Activation::silu;
    if (name == "gelu_tanh") return Activation::gelu_tanh;
    if (name == "relu_squared") return Activation::relu_squared;
    throw std::invalid_argument("unknown activation '" + name + "'");
}

Mlp make_mlp(const MlpTuple& parts, const std::string& activation) {
    return {std::get<0>(parts), std::get<1>(parts), std::get<2>(parts), activation_named(activation)};
}

void bind_router(nb::module_& module) {
    nb::class_<Router>(module, "Router")
        .def("__init__", [](Router* router, Linear linear, const std::string& scoring, std::optional<Vector> scales,
                            std::optional<Vector> choice_bias, std::optional<Norm> norm) {
            require(scoring == "softmax" || scoring == "sigmoid", "experts are scored by softmax or sigmoid");
            new (router) Router();
            router->linear = std::move(linear);
            router->is_sigmoid = scoring == "sigmoid";
            if (scales) router->scales = to_vector(*scales);
            if (choice_bias) router->choice_bias = to_vector(*choice_bias);
            router->norm = std::move(norm);
        }, nb::arg("linear"), nb::arg("scoring"), nb::arg("scales").none(), nb::arg("choice_bias").none(),
             nb::arg("norm").none())
        .def_rw("num_chosen", &Router::num_chosen).def_rw("num_groups", &Router::num_groups)
        .def_rw("num_chosen_groups", &Router::num_chosen_groups)
        .def_rw("is_renormalised", &Router::is_renormalised);
}

}  // namespace

void bind_channels(nb::module_& module) {
    nb::class_<GatedMlp, Channel>(module, "GatedMlp")
        .def("__init__", [](GatedMlp* block, Norm norm, const MlpTuple& parts, const std::string& activation,
                            std::optional<Norm> output_norm) {
            new (block) GatedMlp();
            block->norm = std::move(norm);
            block->mlp = make_mlp(parts, activation);
            block->output_norm = std::move(output_norm);
        }, nb::arg("norm"), nb::arg("parts"), nb::arg("activation"), nb::arg("output_norm").none());
    nb::class_<PerLayerInput, Channel>(module, "PerLayerInput")
        .def("__init__", [](PerLayerInput* block, const Linear& gate, const Linear& projection, const Norm& norm,
                            int64_t first) {
            new (block) PerLayerInput;
            block->gate = gate, block->projection = projection, block->norm = norm, block->first = first;
        }, nb::arg("gate"), nb::arg("projection"), nb::arg("norm"), nb::arg("first"));
    bind_router(module);
    nb::class_<Experts, Channel>(module, "Experts")
        .def("__init__", [](Experts* block, Norm norm, Router router, const std::vector<MlpTuple>& experts,
                            const std::string& activation) {
            new (block) Experts();
            block->norm = std::move(norm);
            block->router = std::move(router);
            for (const MlpTuple& parts : experts) block->experts.push_back(make_mlp(parts, activation));
        }, nb::arg("norm"), nb::arg("router"), nb::arg("experts"), nb::arg("activation"))
        .def_rw("shared", &Experts::shared, nb::arg("shared").none()).def_rw("shares_norm", &Experts::shares_norm)
        .def_rw("shared_gate", &Experts::shared_gate, nb::arg("shared_gate").none())
        .def_rw("reduce", &Experts::reduce, nb::arg("reduce").none())
        .def_rw("expand", &Experts::expand, nb::arg("expand").none())
        .def_rw("sum_norm", &Experts::sum_norm, nb::arg("sum_norm").none())
        .def_rw("output_norm", &Experts::output_norm, nb::arg("output_norm").none());
}

}  // namespace headlong
