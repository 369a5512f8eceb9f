// How fast this machine reads memory with this many threads: the ceiling a decode pass stands under.
#include <atomic>
#include <chrono>
#include <cstring>

#include "bindings.hpp"

namespace headlong {

void bind_bandwidth(nb::class_<Engine>& engine) {
    engine.def("read_gb_per_s", [](Engine& self, int64_t num_bytes) {
        require(num_bytes >= 4096 && num_bytes <= int64_t{1} << 34, "the buffer must be 4 KiB to 16 GiB");
        const nb::gil_scoped_release release;
        const std::lock_guard lock(self.pool.mutex);
        HugeBuffer buffer(num_bytes);
        std::memset(buffer.bytes(), 1, num_bytes);
        const auto* numbers = reinterpret_cast<const float*>(buffer.bytes());
        std::atomic<float> sink{0.0f};
        const auto read = [&](Worker& worker) {
            const Range own = worker.share(num_bytes / 128);
            sink = self.kernels.read(numbers + own.first * 32, (own.stop - own.first) * 32);
        };
        self.pool.run(read);  // once to wake the team
        const auto start = std::chrono::steady_clock::now();
        self.pool.run(read);
        const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
        return num_bytes / elapsed.count() / 1e9;
    }, nb::arg("num_bytes"));
}

}  // namespace headlong
