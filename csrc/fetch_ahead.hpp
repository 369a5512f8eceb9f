// Fetching what is read once, weights and caches, before it is used.
//
// A core that only streams through weights is served best by its own prefetchers. With more rows, products delay
// them, and asking ahead pays: lines come from far ahead into the second cache, and from near by into the first,
// which takes almost no time. Not from far ahead into the first: it can wait for some twenty lines at a
// time, and while these were outstanding the core stalled, products included.
#pragma once

#include <cstdint>

#include "unroll.hpp"

namespace headlong {

// Fetch the line at `place` into the second cache.
HEADLONG_INLINE inline void fetch_soon(const void* place) { __builtin_prefetch(place, 0, 2); }

// Fetch a line ahead of the one at `line`; called for one line after the other between the products, since many at
// once are too many to wait for. For a matrix of 4 to 8 bits, or of floats (0), times N rows.
template <int kBits, int N>
HEADLONG_INLINE inline void fetch_ahead(const uint8_t* line) {
    constexpr bool kIsPacked = kBits >= 4 && kBits < 8;
    constexpr bool kOnlyStreams = (kIsPacked && N == 1) || (kBits == 8 && N <= 2);
    constexpr bool kMultiplies = (kIsPacked && N >= 2) || (kBits == 8 && N >= 4);
    if constexpr (kMultiplies) {
        fetch_soon(line + 8192);
        __builtin_prefetch(line + 2048);
    } else if constexpr (!kOnlyStreams) {
        __builtin_prefetch(line + (kBits == 8 ? 8192 : 2048));
    }
}

}  // namespace headlong
