// Compiled with the AVX-512 flags (F, BW, VL, DQ, VNNI) where the compiler knows them.
#include "kernels.hpp"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VNNI__)
#include "dot_avx512.hpp"
#include "isa_table.hpp"

namespace headlong {
const Kernels* avx512_kernels() {
    static constexpr Kernels kernels = make_kernels<Avx512Dot>("avx512");
    return &kernels;
}
}  // namespace headlong
#else
namespace headlong {
const Kernels* avx512_kernels() { return nullptr; }
}  // namespace headlong
#endif
