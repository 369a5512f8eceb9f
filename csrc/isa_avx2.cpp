// Compiled with -mavx2 -mfma -mf16c where the compiler knows them.
#include "kernels.hpp"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "dot_avx2.hpp"
#include "isa_table.hpp"

namespace headlong {
const Kernels* avx2_kernels() {
    static constexpr Kernels kernels = make_kernels<Avx2Dot>("avx2");
    return &kernels;
}
}  // namespace headlong
#else
namespace headlong {
const Kernels* avx2_kernels() { return nullptr; }
}  // namespace headlong
#endif
