#include "dot_portable.hpp"
#include "isa_table.hpp"

namespace headlong {

const Kernels& portable_kernels() {
    static constexpr Kernels kernels = make_kernels<PortableDot>("portable");
    return kernels;
}

}  // namespace headlong
