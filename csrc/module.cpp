// The Python face of the kernels: checks every shape before anything reaches them.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"

namespace headlong {

namespace {

template <class T, size_t kCount>
T named(const std::pair<const char*, T> (&known)[kCount], const std::string& name, const char* what) {
    for (const auto& [own, value] : known) {
        if (name == own) return value;
    }
    throw std::invalid_argument(std::string(what) + " '" + name + "' is unknown");
}

constexpr std::pair<const char*, Format> kFormats[] = {
    {"q4", Format::q4},   {"q5", Format::q5},     {"q6", Format::q6},  {"q8", Format::q8},
    {"f16", Format::f16}, {"bf16", Format::bf16}, {"f32", Format::f32}};

constexpr std::pair<const char*, Scales> kScales[] = {
    {"one", Scales::one}, {"two", Scales::two}, {"wide", Scales::wide}, {"nested", Scales::nested}};

constexpr std::pair<const char*, Source> kSources[] = {
    {"Q4_0", Source::q4_0}, {"Q4_1", Source::q4_1}, {"Q4_K", Source::q4_k}, {"Q5_0", Source::q5_0},
    {"Q5_1", Source::q5_1}, {"Q5_K", Source::q5_k}, {"Q6_K", Source::q6_k}, {"Q8_0", Source::q8_0},
    {"F16", Source::f16},   {"BF16", Source::bf16}, {"F32", Source::f32}};

const char* format_name(const Matrix& m) { return kFormats[static_cast<int>(m.format)].first; }

void bind_records(nb::module_& module) {
    nb::class_<Matrix>(module, "Matrix")
        .def_prop_ro("shape", [](const Matrix& m) { return std::make_tuple(m.outputs, m.inputs); })
        .def_prop_ro("format", &format_name)
        .def_prop_ro("num_bytes", [](const Matrix& m) { return m.num_tiles * m.tile_bytes; });
    nb::class_<TeamChoice>(module, "TeamChoice")
        .def(nb::init<>())
        .def_prop_ro("is_alone", &TeamChoice::is_alone)
        .def("settle", &TeamChoice::settle, nb::arg("now_s"), nb::arg("took_s"), nb::arg("useful_s"));
    nb::class_<MixerState>(module, "MixerState");
    nb::class_<KVLayer, MixerState>(module, "KVLayer")
        .def("reserve", [](KVLayer& layer, int64_t capacity, const std::vector<KVLayer*>& others) {
            require(capacity >= 0 && capacity <= kMaxPositions, "a cache holds from 0 to 2**24 positions");
            std::vector<KVLayer*> layers{&layer};
            for (KVLayer* other : others) {
                require(other != nullptr, "a cache layer is missing");
                layers.push_back(other);
            }
            KVLayer::reserve_all(layers, capacity);
        }, nb::arg("capacity"), nb::arg("others") = std::vector<KVLayer*>{})
        .def("copy_from", [](KVLayer& layer, const KVLayer& other, int64_t num_positions) {
            require(layer.has_shape_of(other), "a cache layer can only be copied from one of the same shape");
            require(num_positions >= 0 && num_positions <= other.capacity(),
                    "a cache layer does not hold the positions to copy");
            if (&layer != &other && num_positions > 0) layer.copy_from(other, num_positions);
        }, nb::arg("other"), nb::arg("num_positions"))
        .def_prop_ro("bytes_per_position", &KVLayer::bytes_per_position)
        .def_prop_ro("num_bytes", &KVLayer::num_bytes);
    nb::class_<Norm>(module, "Norm")
        .def("__init__", [](Norm* norm, Vector weight, float eps) {
            new (norm) Norm{to_vector(weight), eps};
        }, nb::arg("weight"), nb::arg("eps"));
    nb::class_<Linear>(module, "Linear")
        .def("__init__", [](Linear* linear, std::shared_ptr<Matrix> weight, std::optional<Vector> bias) {
            const std::vector<float> numbers = bias ? to_vector(*bias) : std::vector<float>{};
            require(!bias || static_cast<int64_t>(numbers.size()) == weight->outputs,
                    "the bias does not fit the matrix");
            new (linear) Linear{std::move(weight), numbers};
        }, nb::arg("weight"), nb::arg("bias").none());
    nb::class_<Rope>(module, "Rope")
        .def("__init__", [](Rope* rope, Vector frequencies, double amplitude) {
            new (rope) Rope(to_vector(frequencies), amplitude);
        }, nb::arg("frequencies"), nb::arg("amplitude"));
    nb::class_<Mixer>(module, "Mixer").def("check", &Mixer::check);
    nb::class_<Attention, Mixer>(module, "Attention")
        .def(nb::init<>())
        .def_rw("norm", &Attention::norm).def_rw("query", &Attention::query)
        .def_rw("key", &Attention::key).def_rw("value", &Attention::value)
        .def_rw("output", &Attention::output).def_rw("num_heads", &Attention::num_heads)
        .def_rw("num_kv_heads", &Attention::num_kv_heads).def_rw("head_dim", &Attention::head_dim)
        .def_rw("value_dim", &Attention::value_dim).def_rw("value_scale", &Attention::value_scale)
        .def("set_sinks", [](Attention& block, Vector sinks) { block.sinks = to_vector(sinks); }, nb::arg("sinks"))
        .def_rw("scale", &Attention::scale).def_rw("window", &Attention::window)
        .def_rw("ahead", &Attention::ahead)
        .def_rw("rope", &Attention::rope).def_rw("query_norm", &Attention::query_norm)
        .def_rw("key_norm", &Attention::key_norm)
        .def_rw("value_norm", &Attention::value_norm).def_rw("beside_norm", &Attention::beside_norm)
        .def_rw("adds_to_normed", &Attention::adds_to_normed)
        .def_rw("output_norm", &Attention::output_norm).def_rw("gate", &Attention::gate);
    nb::class_<Channel>(module, "Channel").def("check", &Channel::check);
}

void bind_weights(nb::class_<Engine>& engine) {
    engine.def("make_matrix", [](Engine& self, const std::string& format, const std::string& scales, int64_t outputs,
                                 int64_t inputs, float unit) {
        return std::make_shared<Matrix>(
            make_matrix(self.arena, self.kernels, named(kFormats, format, "the weight format"),
                        named(kScales, scales, "the kind of scales"), outputs, inputs, unit));
    }, nb::arg("format"), nb::arg("scales"), nb::arg("outputs"), nb::arg("inputs"), nb::arg("unit") = 1.0f);
    engine.def("pack_rows", [](Engine& self, Matrix& m, const std::string& source, int64_t first_row, Bytes data) {
        const Source kind = named(kSources, source, "the type of rows");
        require(data.shape(1) == row_bytes(kind, m.inputs), "rows have another length than the matrix");
        const auto num_rows = static_cast<int64_t>(data.shape(0));
        const nb::gil_scoped_release release;
        const std::lock_guard lock(self.pool.mutex);
        pack_rows(m, self.kernels, self.pool, kind, first_row, num_rows, data.data());
    }, nb::arg("matrix"), nb::arg("source"), nb::arg("first_row"), nb::arg("data"));
    engine.def("pack_affine", [](Engine& self, Matrix& m, int bits, int64_t first_row, Bytes levels, Bytes scales,
                                 Bytes minima) {
        const auto num_rows = static_cast<int64_t>(levels.shape(0)), num_groups = static_cast<int64_t>(scales.shape(1)) / 2;
        require(int64_t(levels.shape(1)) * 8 == m.inputs * bits, "rows have another length than the matrix");
        require(num_groups > 0 && m.inputs % num_groups == 0, "groups do not share the row");
        require(int64_t(scales.shape(0)) == num_rows && int64_t(minima.shape(0)) == num_rows &&
                    minima.shape(1) == scales.shape(1), "there are not as many scales as groups");
        const AffineRows rows{levels.data(), scales.data(), minima.data(), bits, m.inputs / num_groups, m.inputs};
        const nb::gil_scoped_release release;
        const std::lock_guard lock(self.pool.mutex);
        pack_affine(m, self.kernels, self.pool, rows, first_row, num_rows);
    }, nb::arg("matrix"), nb::arg("bits"), nb::arg("first_row"), nb::arg("levels"), nb::arg("scales"),
       nb::arg("minima"));
    engine.def("settle", [](Engine& self) {
        const std::lock_guard lock(self.pool.mutex);
        self.arena.settle();
        trim_heap();
    });
    engine.def("embed", [](Engine& self, const Matrix& m, Ids ids, Rows out) {
        require(out.shape(0) == ids.shape(0) && int64_t(out.shape(1)) == m.inputs,
                "the buffer for embeddings has another shape");
        for (size_t i = 0; i < ids.shape(0); ++i) {
            require(ids.data()[i] >= 0 && ids.data()[i] < m.outputs, "a token id is outside the embedding table");
        }
        const Turn turn(self);
        for (size_t i = 0; i < ids.shape(0); ++i) {
            unpack_row(m, self.kernels, ids.data()[i], out.data() + i * m.inputs);
        }
    }, nb::arg("matrix"), nb::arg("ids"), nb::arg("out"));
    engine.def("make_kv_layer", [](Engine& self, int num_kv_heads, int key_dim, int value_dim) {
        require(num_kv_heads >= 1 && num_kv_heads <= 4096 && is_head_dim(key_dim) && is_head_dim(value_dim),
                "a cache layer needs from 1 to 4096 heads, whose sizes are even and at most 4096");
        return new KVLayer(num_kv_heads, key_dim, value_dim, self.kernels.width, self.cache_buffers);
    }, nb::arg("num_kv_heads"), nb::arg("key_dim"), nb::arg("value_dim"), nb::rv_policy::take_ownership);
}

void bind_rows(nb::class_<Engine>& engine) {
    engine.def("project", [](Engine& self, Input x, const Linear& linear, Rows y) {
        require(int64_t(x.shape(1)) == linear.inputs() && int64_t(y.shape(1)) == linear.outputs() &&
                    x.shape(0) == y.shape(0), "rows do not fit the projection");
        const Turn turn(self);
        self.project(x.data(), x.shape(0), nullptr, linear, y.data());
    }, nb::arg("x"), nb::arg("linear"), nb::arg("y"));
    engine.def("norm", [](Engine& self, Input x, const Norm& norm, Rows y) {
        require(x.shape(1) == norm.weight.size() && y.shape(1) == x.shape(1) && x.shape(0) == y.shape(0),
                "rows do not fit the norm");
        const Turn turn(self);
        self.normalise(x.data(), x.shape(0), norm, y.data());
    }, nb::arg("x"), nb::arg("norm"), nb::arg("y"));
    engine.def("residual_silu", [](Engine& self, Input x, const Linear& linear, Rows y) {
        require(linear.inputs() == linear.outputs() && int64_t(x.shape(1)) == linear.inputs() &&
                    y.shape(1) == x.shape(1) && x.shape(0) == y.shape(0),
                "rows do not fit the block");
        const Turn turn(self);
        self.residual_silu(x.data(), x.shape(0), linear, y.data());
    }, nb::arg("x"), nb::arg("linear"), nb::arg("y"));
    engine.def("make_rows", [](Engine& self, size_t num_rows, size_t num_columns) {
        require(num_columns == 0 || num_rows <= (size_t{1} << 40) / num_columns, "too many rows");
        using Held = std::shared_ptr<HugeBuffer>;
        auto* held = new Held(self.row_buffers->lend(num_rows * num_columns * sizeof(float)));
        nb::capsule owner(held, [](void* p) noexcept { delete static_cast<Held*>(p); });
        auto* numbers = reinterpret_cast<float*>((*held)->bytes());
        return nb::ndarray<nb::numpy, float, nb::ndim<2>>(numbers, {num_rows, num_columns}, owner);
    }, nb::arg("num_rows"), nb::arg("num_columns"));
}

}  // namespace

NB_MODULE(_native, module) {
    // Blocks live as long as the model that made them, often to the end of the process.
    nb::set_leak_warnings(false);
    bind_records(module);
    nb::class_<Engine> engine(module, "Engine");
    engine.def("__init__", [](Engine* self, const std::string& instruction_set, int num_threads) {
        require(num_threads >= 1 && num_threads <= 256, "the number of threads must be from 1 to 256");
        new (self) Engine(instruction_set.c_str(), num_threads);
    }, nb::arg("instruction_set"), nb::arg("num_threads"));
    engine.def_prop_ro("instruction_set", [](const Engine& self) { return self.kernels.name; });
    engine.def_prop_ro("kernel_s", [](const Engine& self) { return self.kernel_s; });
    engine.def_prop_ro("num_threads", [](const Engine& self) { return self.pool.num_threads(); });
    engine.def_prop_ro("num_threads_in_use", [](const Engine& self) { return self.pool.num_threads_in_use(); });
    engine.def("set_alone", [](Engine& self, bool is_alone) { self.pool.set_alone(is_alone); }, nb::arg("is_alone"));
    engine.def_prop_ro("core_distance_ns", [](const Engine& self) { return self.pool.distance_ns(); });
    engine.def("set_far_apart", [](Engine& self, bool is_far) { self.pool.set_far_apart(is_far); }, nb::arg("is_far"));
    bind_weights(engine);
    bind_rows(engine);
    bind_pass(module, engine);
    bind_bandwidth(engine);
    bind_picking(module);
    bind_index(module);
    bind_packed_rows(module);
    bind_draft(module, engine);
    bind_recurrent(module, engine);
    bind_latent(module);
    bind_channels(module);
}

}  // namespace headlong
