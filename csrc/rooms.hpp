// Scratch of a pass, as members of the team see it: one room for all, or one for each.
//
// Cores of one die hand lines on in no time worth mentioning. Between two dies, where the cores of a virtual machine
// often are, a store to a line that the other core has read must ask that core first, and stores wait for each other:
// 35 ns a line. Two things follow:
//
// - A member's own room is a page away from the next one's. Prefetchers read on behind the end of what is used, never
//   into another page, and what they take from its owner it must ask for again: with rooms side by side, on two dies,
//   a tenth of a pass over a few rows.
// - What all members read and each writes a part of is best one room while they are near. While they are far apart
//   each has a copy: whoever writes a part writes it to its own as ever and sends it to the others past all caches,
//   which waits for nobody. Two members that write 90 lines each, meet and read them all: in one room 0.9 µs on one
//   die and 3.4 on two, in copies 1.2 on either (docs/log.md).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "formats.hpp"
#include "pool.hpp"

namespace headlong {

// Copy whole pieces of 16 bytes, aligned, past the caches where the processor can.
inline void store_past_caches(const void* from, int64_t num_bytes, void* to) {
#if defined(__SSE2__)
    const auto* source = static_cast<const __m128i*>(from);
    auto* target = static_cast<__m128i*>(to);
    for (int64_t i = 0; i < num_bytes / 16; ++i) _mm_stream_si128(target + i, _mm_load_si128(source + i));
#else
    std::memcpy(to, from, num_bytes);
#endif
}

// Wait until others would see what was stored past the caches; a barrier alone does not promise it.
inline void finish_stores() {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

// Elements that `count` of them take with a page behind them.
template <class T>
constexpr int64_t with_page(int64_t count) {
    constexpr int64_t kLine = 64, kPage = 4096;
    return (ceil_div(count * sizeof(T), kLine) * kLine + kPage) / sizeof(T);
}

template <class T>
class Rooms {
public:
    Rooms() = default;
    // So many rooms of `count` elements each; one is for all members. All of them together can also be used as one
    // of `count_in_common`.
    Rooms(Scratch& scratch, int64_t count, int64_t num_rooms, int64_t count_in_common = 0)
        : apart_(num_rooms > 1 ? with_page<T>(count) : 0),
          first_(scratch.room<T>(std::max(apart_ * (num_rooms - 1) + count, count_in_common))) {}

    T* of(const Member& me) const { return of(me.index); }
    T* in_common() const { return first_; }

    // Where every member has a copy: send what one has written to its own to another, or to all others. They may read
    // it once that member has finished its stores and come to a barrier.
    void send_to(int other, const Member& me, int64_t start, int64_t count) const {
        if (apart_ > 0) store_past_caches(of(me) + start, count * sizeof(T), of(other) + start);
    }
    void send(const Member& me, int64_t start, int64_t count) const {
        for (int other = 0; other < me.count; ++other) {
            if (other != me.index) send_to(other, me, start, count);
        }
    }

private:
    T* of(int member) const { return first_ + member * apart_; }

    int64_t apart_ = 0;
    T* first_ = nullptr;
};

}  // namespace headlong
