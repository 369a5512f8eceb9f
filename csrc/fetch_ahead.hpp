// Fetching weights before they are used.
//
// Few rows wait for memory and nothing else, so lines go straight into the first cache. It can wait for some
// twenty lines at a time; with more rows a core that prefetched into it stood still, products and all, whenever
// these were out, and every row cost its whole arithmetic on top of the reading. The second cache waits for more:
// lines come there from far ahead, and from near by into the first one, which takes no time worth mentioning.
#pragma once

#include <cstdint>

#include "unroll.hpp"

namespace headlong {

// Fetch a line ahead of the one at `line`, for a matrix of 4 or 8 bits, or of floats (0), times N rows.
template <int kBits, int N>
HEADLONG_INLINE inline void fetch_ahead(const uint8_t* line) {
    constexpr bool kHasTimeToSpare = (kBits == 4 && N >= 2) || (kBits == 8 && N >= 6);
    if constexpr (kHasTimeToSpare) {
        __builtin_prefetch(line + 8192, 0, 2);
        __builtin_prefetch(line + 2048);
    } else {
        __builtin_prefetch(line + (kBits == 4 ? 4096 : kBits == 8 ? 8192 : 2048));
    }
}

}  // namespace headlong
