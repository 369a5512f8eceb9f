// Binding of latent attention.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>

#include "bindings.hpp"
#include "latent_attention.hpp"

namespace headlong {

void bind_latent(nb::module_& module) {
    nb::class_<LatentAttention, Mixer>(module, "LatentAttention")
        .def(nb::init<>())
        .def_rw("norm", &LatentAttention::norm)
        .def_rw("query_down", &LatentAttention::query_down).def_rw("query_norm", &LatentAttention::query_norm)
        .def_rw("query", &LatentAttention::query)
        .def_rw("latent", &LatentAttention::latent).def_rw("latent_norm", &LatentAttention::latent_norm)
        .def_rw("key_up", &LatentAttention::key_up).def_rw("value_up", &LatentAttention::value_up)
        .def_rw("output", &LatentAttention::output)
        .def_rw("num_heads", &LatentAttention::num_heads).def_rw("plain_dim", &LatentAttention::plain_dim)
        .def_rw("value_dim", &LatentAttention::value_dim)
        .def_rw("scale", &LatentAttention::scale).def_rw("rope", &LatentAttention::rope);
}

}  // namespace headlong
