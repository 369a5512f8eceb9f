// Binding of the recurrent mixers and their state.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"
#include "delta_net.hpp"
#include "mamba2.hpp"

namespace headlong {

namespace {
RecurrentShape make_shape(const Engine& engine, std::tuple<int, int, int, int> sizes, int conv_width) {
    const auto [key_heads, value_heads, key_dim, value_dim] = sizes;
    return {key_heads, value_heads, key_dim, value_dim, conv_width, engine.kernels.width};
}

template <class T>
void init_block(T* block, const Engine& engine, std::tuple<int, int, int, int> sizes, Input convolution,
                Vector decay_rate, Vector decay_bias) {
    new (block) T();
    const int width = static_cast<int>(std::min<size_t>(convolution.shape(0), kMostConvWidth + 1));
    block->shape = make_shape(engine, sizes, width);
    block->convolution.assign(convolution.data(), convolution.data() + convolution.size());
    block->decay_rate = to_vector(decay_rate);
    block->decay_bias = to_vector(decay_bias);
}
}  // namespace

void bind_recurrent(nb::module_& module, nb::class_<Engine>& engine) {
    nb::class_<RecurrentMixer, Mixer>(module, "RecurrentMixer")
        .def_rw("norm", &RecurrentMixer::norm).def_rw("mixed", &RecurrentMixer::mixed)
        .def_rw("gate", &RecurrentMixer::gate).def_rw("decay", &RecurrentMixer::decay)
        .def_rw("output", &RecurrentMixer::output);
    nb::class_<GatedDeltaNet, RecurrentMixer>(module, "GatedDeltaNet")
        .def("__init__", init_block<GatedDeltaNet>, nb::arg("engine"), nb::arg("sizes"), nb::arg("convolution"),
             nb::arg("decay_rate"), nb::arg("decay_bias"))
        .def_rw("update", &GatedDeltaNet::update).def_rw("head_norm", &GatedDeltaNet::head_norm)
        .def_rw("tiles_output", &GatedDeltaNet::tiles_output)
        .def("settle", [](GatedDeltaNet& block) {
            block.check();
            block.settle();
        });
    nb::class_<Mamba2, RecurrentMixer>(module, "Mamba2")
        .def("__init__", init_block<Mamba2>, nb::arg("engine"), nb::arg("sizes"), nb::arg("convolution"),
             nb::arg("decay_rate"), nb::arg("decay_bias"))
        .def_rw("group_norm", &Mamba2::group_norm)
        .def("set_steps", [](Mamba2& block, Vector convolution_bias, Vector skip, std::tuple<double, double> limits) {
            block.convolution_bias = to_vector(convolution_bias);
            block.skip = to_vector(skip);
            std::tie(block.least_step, block.most_step) = limits;
            block.check();
        }, nb::arg("convolution_bias"), nb::arg("skip"), nb::arg("limits"));
    nb::class_<RecurrentState, MixerState>(module, "RecurrentState")
        .def("append", [](RecurrentState& state, int64_t num_rows, bool all_or_none, std::vector<int64_t> snapshots) {
            require(num_rows <= kMaxPositions, "a pass has at most 2**24 rows");
            state.append(num_rows, all_or_none, std::move(snapshots));
        }, nb::arg("num_rows"), nb::kw_only(), nb::arg("all_or_none"), nb::arg("snapshots"))
        .def("commit", &RecurrentState::commit, nb::arg("num_rows"))
        .def("rollback", &RecurrentState::rollback)
        .def("copy_from", [](RecurrentState& state, const RecurrentState& other, std::optional<int64_t> snapshot) {
            require(!snapshot || *snapshot >= 0, "there is no such snapshot");
            state.copy_from(other, snapshot.value_or(-1));
        }, nb::arg("other"), nb::arg("snapshot").none())
        .def("forget_snapshot", &RecurrentState::forget_snapshot, nb::arg("snapshot"))
        .def_prop_ro("num_bytes", &RecurrentState::num_bytes);
    engine.def("make_recurrent_state", [](Engine& self, std::tuple<int, int, int, int> sizes, int conv_width) {
        const RecurrentShape shape = make_shape(self, sizes, conv_width);
        require(shape.is_sound(), kUnsound);
        return new RecurrentState(shape, self.cache_buffers);
    }, nb::arg("sizes"), nb::arg("conv_width"), nb::rv_policy::take_ownership);
}

}  // namespace headlong
