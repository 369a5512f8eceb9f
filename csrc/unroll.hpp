// Loops that are unrolled before the compiler allocates registers.
#pragma once

#include <type_traits>
#include <utility>

namespace headlong {

#define HEADLONG_INLINE __attribute__((always_inline))

// Call `step` with 0, 1 … N - 1 as compile-time constants. Arrays of registers that an ordinary loop
// indexes are often left in memory, because the compiler unrolls it too late.
template <int N, class Step>
HEADLONG_INLINE inline void unroll(Step&& step) {
    [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) HEADLONG_INLINE {
        (step(std::integral_constant<int, kIndex>{}), ...);
    }(std::make_integer_sequence<int, N>());
}

}  // namespace headlong
