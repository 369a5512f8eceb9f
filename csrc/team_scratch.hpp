// Scratch memory of a pass: what workers share, and what each has for itself.
//
// A SharedBuffer is read by all workers, and each writes a part of it. A worker calls `publish` after it has written,
// and others may read that part behind the next barrier. Nothing outside this file knows whether there is one buffer
// or a replica for each worker.
//
// Replicas are for two dies, where the cores of a virtual machine often are. There, a store to a cache line that the
// other core has read must ask that core first, and stores wait for each other: 35 ns a line. So each worker writes
// its part to its own replica, and `publish` stores it to the others past all caches, which waits for no other core.
// Two workers that write 90 lines each, meet and read them all take 0.9 µs with one buffer on one die and 3.4 on two;
// with replicas they take 1.2 on either (docs/log/0024-per-thread-copies-for-two-dies.md). The pool measures which of the two it is.
//
// Buffers of different workers are a page apart. Prefetchers read past the end of what is used, but not into another
// page, and a line they take from another worker must be fetched back. Side by side, that cost a tenth of a pass over
// a few rows on two dies.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "formats.hpp"
#include "memory.hpp"
#include "pool.hpp"

namespace headlong {

// Copy whole pieces of 16 bytes, aligned, past the caches where the processor can. Worker::barrier() orders them.
inline void store_past_caches(const void* from, int64_t num_bytes, void* to) {
#if defined(__SSE2__)
    const auto* source = static_cast<const __m128i*>(from);
    auto* target = static_cast<__m128i*>(to);
    for (int64_t i = 0; i < num_bytes / 16; ++i) _mm_stream_si128(target + i, _mm_load_si128(source + i));
#else
    std::memcpy(to, from, num_bytes);
#endif
}

// Distance between buffers of `count` elements with a page between them.
template <class T>
constexpr int64_t page_apart(int64_t count) {
    constexpr int64_t kLine = 64, kPage = 4096;
    return (ceil_div(count * sizeof(T), kLine) * kLine + kPage) / sizeof(T);
}

// A buffer for each worker, which no other worker reads. All of them together can also be used as one.
template <class T>
class WorkerBuffers {
public:
    WorkerBuffers() = default;
    // `num_buffers` of `count` elements; a single one is used by all workers. `whole()` has `whole_count` at least.
    WorkerBuffers(Scratch& scratch, int64_t count, int64_t num_buffers, int64_t whole_count = 0)
        : stride_(num_buffers > 1 ? page_apart<T>(count) : 0),
          first_(scratch.reserve<T>(std::max(stride_ * (num_buffers - 1) + count, whole_count))) {}

    T* of(int worker) const { return first_ + worker * stride_; }
    T* mine(const Worker& worker) const { return of(worker.index); }
    T* whole() const { return first_; }

private:
    int64_t stride_ = 0;
    T* first_ = nullptr;
};

// A buffer that all workers read and each writes a part of.
template <class T>
class SharedBuffer {
public:
    SharedBuffer() = default;

    // The buffer as this worker sees it. It writes its parts here.
    T* mine(const Worker& worker) const { return has_replicas_ ? replicas_.mine(worker) : original_; }

    // Let all others see what this worker has written, or only one of them. They may read it behind a barrier.
    void publish(const Worker& worker, int64_t start, int64_t count) const {
        if (!has_replicas_) return;
        for (int reader = 0; reader < worker.count; ++reader) publish_to(reader, worker, start, count);
    }
    void publish_to(int reader, const Worker& worker, int64_t start, int64_t count) const {
        if (!has_replicas_ || reader == worker.index) return;
        store_past_caches(mine(worker) + start, count * sizeof(T), replicas_.of(reader) + start);
    }

    // Where the buffer stands for memory of the caller: what all workers do before they use the first `count` elements,
    // and after it behind a barrier. A worker may publish behind the first barrier after `load`.
    void load(const Worker& worker, int64_t count) const {
        if (has_replicas_) std::memcpy(mine(worker), original_, count * sizeof(T));
    }
    void store(const Worker& worker, int64_t count) const {
        if (!has_replicas_) return;
        const Range own = worker.share(count);
        std::memcpy(original_ + own.first, mine(worker) + own.first, (own.stop - own.first) * sizeof(T));
    }

private:
    friend class TeamScratch;

    bool has_replicas_ = false;
    T* original_ = nullptr;
    WorkerBuffers<T> replicas_;
};

// Makes the buffers of one pass, and decides whether workers exchange what they compute.
class TeamScratch {
public:
    // Shared buffers are one for all workers.
    explicit TeamScratch(const Pool& pool) : num_workers_(pool.num_threads()) {}
    // For a pass through layers: replicas while workers are far apart. They pay from two rows on, though every worker
    // then prepares all rows for itself. Rows must be whole cache lines.
    TeamScratch(const Pool& pool, int64_t num_rows, int64_t row_size)
        : num_workers_(pool.num_threads()),
          has_replicas_(pool.is_far_apart() && num_rows > 1 && row_size * sizeof(float) % 64 == 0) {}

    int num_workers() const { return num_workers_; }

    // A shared buffer of `count` elements. With `original` it stands for that memory of the caller.
    template <class T>
    SharedBuffer<T> share(Scratch& scratch, int64_t count, T* original = nullptr) const {
        SharedBuffer<T> buffer;
        buffer.has_replicas_ = has_replicas_;
        buffer.original_ = original;
        if (has_replicas_) {
            buffer.replicas_ = {scratch, count, num_workers_};
        } else if (original == nullptr) {
            buffer.original_ = scratch.reserve<T>(count);
        }
        return buffer;
    }
    // A buffer of `count` elements for each worker. `whole()` has `whole_count` at least.
    template <class T>
    WorkerBuffers<T> make_private(Scratch& scratch, int64_t count, int64_t whole_count = 0) const {
        return {scratch, count, num_workers_, whole_count};
    }

    // Whether each worker computes all rows for itself instead of waiting for those of others: when there are fewer
    // rows than workers, and while exchanging them is slow. `most_rows_alone` bounds how many rows that can be in a
    // pass of `num_rows` or fewer.
    bool computes_rows_alone(const Worker& worker, int64_t num_rows) const {
        return has_replicas_ || num_rows < worker.count;
    }
    int64_t most_rows_alone(int64_t num_rows) const {
        return has_replicas_ ? num_rows : std::min<int64_t>(num_rows, num_workers_ - 1);
    }

private:
    int num_workers_;
    bool has_replicas_ = false;
};

}  // namespace headlong
