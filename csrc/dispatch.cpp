#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels.hpp"

namespace headlong {

namespace {

bool runs_avx2() {
#if defined(__x86_64__) || defined(__i386__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#else
    return false;
#endif
}

bool runs_avx512() {
#if defined(__x86_64__) || defined(__i386__)
    return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
#else
    return false;
#endif
}

}  // namespace

const Kernels& pick_kernels(const char* name) {
    const Kernels* avx512 = runs_avx512() ? avx512_kernels() : nullptr;
    const Kernels* avx2 = runs_avx2() ? avx2_kernels() : nullptr;
    const Kernels* portable = &portable_kernels();
    if (std::strcmp(name, "auto") == 0) {
        return avx512 != nullptr ? *avx512 : avx2 != nullptr ? *avx2 : *portable;
    }
    for (const Kernels* kernels : {avx512, avx2, portable}) {
        if (kernels != nullptr && std::strcmp(name, kernels->name) == 0) return *kernels;
    }
    throw std::invalid_argument(
        std::string("instruction set '") + name + "' is unknown or not to be had on this processor");
}

}  // namespace headlong
