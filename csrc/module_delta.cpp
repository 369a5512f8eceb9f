// Binding of the gated delta net and its state.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"
#include "delta_net.hpp"

namespace headlong {

namespace {
DeltaShape make_shape(const Engine& engine, std::tuple<int, int, int, int> sizes, int conv_width) {
    const auto [key_heads, value_heads, key_dim, value_dim] = sizes;
    return {key_heads, value_heads, key_dim, value_dim, conv_width, engine.kernels.width};
}
}  // namespace

void bind_delta(nb::module_& module, nb::class_<Engine>& engine) {
    nb::class_<GatedDeltaNet, Mixer>(module, "GatedDeltaNet")
        .def("__init__", [](GatedDeltaNet* block, const Engine& engine, std::tuple<int, int, int, int> sizes,
                            Input convolution, Vector decay_rate, Vector decay_bias) {
            new (block) GatedDeltaNet();
            const int width = static_cast<int>(std::min<size_t>(convolution.shape(0), kMostConvWidth + 1));
            block->shape = make_shape(engine, sizes, width);
            block->convolution.assign(convolution.data(), convolution.data() + convolution.size());
            block->decay_rate = to_vector(decay_rate);
            block->decay_bias = to_vector(decay_bias);
        }, nb::arg("engine"), nb::arg("sizes"), nb::arg("convolution"), nb::arg("decay_rate"), nb::arg("decay_bias"))
        .def_rw("norm", &GatedDeltaNet::norm).def_rw("mixed", &GatedDeltaNet::mixed)
        .def_rw("gate", &GatedDeltaNet::gate).def_rw("update", &GatedDeltaNet::update)
        .def_rw("decay", &GatedDeltaNet::decay).def_rw("output", &GatedDeltaNet::output)
        .def_rw("head_norm", &GatedDeltaNet::head_norm).def_rw("tiles_output", &GatedDeltaNet::tiles_output)
        .def("settle", [](GatedDeltaNet& block) {
            block.check();
            block.settle();
        });
    nb::class_<DeltaState, MixerState>(module, "DeltaState")
        .def("append", [](DeltaState& state, int64_t num_rows, bool all_or_none, std::vector<int64_t> snapshots) {
            require(num_rows <= kMaxPositions, "a pass has at most 2**24 rows");
            state.append(num_rows, all_or_none, std::move(snapshots));
        }, nb::arg("num_rows"), nb::kw_only(), nb::arg("all_or_none"), nb::arg("snapshots"))
        .def("commit", &DeltaState::commit, nb::arg("num_rows"))
        .def("rollback", &DeltaState::rollback)
        .def("copy_from", [](DeltaState& state, const DeltaState& other, std::optional<int64_t> snapshot) {
            require(!snapshot || *snapshot >= 0, "there is no such snapshot");
            state.copy_from(other, snapshot.value_or(-1));
        }, nb::arg("other"), nb::arg("snapshot").none())
        .def("forget_snapshot", &DeltaState::forget_snapshot, nb::arg("snapshot"))
        .def_prop_ro("num_bytes", &DeltaState::num_bytes);
    engine.def("make_delta_state", [](Engine& self, std::tuple<int, int, int, int> sizes, int conv_width) {
        const DeltaShape shape = make_shape(self, sizes, conv_width);
        require(shape.is_sound(), kUnsound);
        return new DeltaState(shape, self.cache_buffers);
    }, nb::arg("sizes"), nb::arg("conv_width"), nb::rv_policy::take_ownership);
}

}  // namespace headlong
