// What the parts of the Python module share: array types and the refusal of malformed ones.
#pragma once

#include <chrono>
#include <mutex>
#include <stdexcept>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "engine.hpp"
#include "pack.hpp"

namespace headlong {

namespace nb = nanobind;

using Input = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Row = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ids = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

constexpr int64_t kMaxPositions = int64_t{1} << 24;

inline void require(bool is_fine, const char* problem) {
    if (!is_fine) throw std::invalid_argument(problem);  // a ValueError in Python
}

// For what is exact on every instruction set, and needs no engine to belong to.
inline const Kernels& best_kernels() {
    static const Kernels& kernels = pick_kernels("auto");
    return kernels;
}

inline std::vector<float> to_vector(const Vector& numbers) {
    return {numbers.data(), numbers.data() + numbers.shape(0)};
}

// Lets others have Python, takes the team, and adds the time until the end of the scope to
// `kernel_s`; every call that computes goes through one of these.
class Turn {
public:
    explicit Turn(Engine& engine)
        : engine_(engine), lock_(engine.pool.mutex), start_(std::chrono::steady_clock::now()) {}
    ~Turn() {
        const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
        engine_.kernel_s += elapsed.count();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

private:
    nb::gil_scoped_release release_;
    Engine& engine_;
    std::lock_guard<std::mutex> lock_;
    std::chrono::steady_clock::time_point start_;
};

void bind_pass(nb::module_& module, nb::class_<Engine>& engine);
void bind_draft(nb::module_& module, nb::class_<Engine>& engine);
void bind_delta(nb::module_& module, nb::class_<Engine>& engine);
void bind_latent(nb::module_& module);
void bind_channels(nb::module_& module);
void bind_bandwidth(nb::class_<Engine>& engine);
void bind_picking(nb::module_& module);
void bind_index(nb::module_& module);
void bind_packed_rows(nb::module_& module);

}  // namespace headlong
