// Memory in huge pages where the system gives them: weights are streamed once per pass, and with
// 4 KiB pages the page walks alone cost a quarter of the bandwidth.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace headlong {

class HugeBuffer {
public:
    HugeBuffer() = default;
    explicit HugeBuffer(size_t num_bytes);  // zero-filled; throws std::bad_alloc
    ~HugeBuffer();
    HugeBuffer(HugeBuffer&& other) noexcept;
    HugeBuffer& operator=(HugeBuffer&& other) noexcept;
    HugeBuffer(const HugeBuffer&) = delete;
    HugeBuffer& operator=(const HugeBuffer&) = delete;

    uint8_t* bytes() { return bytes_; }
    const uint8_t* bytes() const { return bytes_; }
    size_t size() const { return size_; }
    void collapse(size_t num_bytes);  // into huge pages, as far as it is mapped; may do nothing

private:
    uint8_t* bytes_ = nullptr;
    size_t size_ = 0;
    bool is_mapped_ = false;
};

// A piece of a slab; the slab lives as long as any of its pieces.
struct Piece {
    std::shared_ptr<HugeBuffer> slab;
    uint8_t* bytes = nullptr;
};

// Hands out long-lived pieces side by side, so that hundreds of small matrices share huge pages.
class Arena {
public:
    Piece take(size_t num_bytes);
    // Once pieces are filled: turn what the system gave in small pages into huge ones.
    void settle();

private:
    struct Filled { std::weak_ptr<HugeBuffer> slab; size_t used; };

    std::shared_ptr<HugeBuffer> slab_;
    size_t used_ = 0;
    std::vector<Filled> full_;  // since the last time
};

// Give memory that nothing uses back to the system, where the allocator would keep it.
void trim_heap();

// Lends buffers and takes them back. Rows of logits come and go with every pass, caches with every request, and
// memory fresh from the system costs page faults: a tenth of a pass over one row, milliseconds of a request.
class Recycler : public std::enable_shared_from_this<Recycler> {
public:
    // Keeps so many bytes at most, and lends no buffer that is more than `most_spare` times as large as asked.
    Recycler(size_t most_bytes, double most_spare) : most_bytes_(most_bytes), most_spare_(most_spare) {}

    // It comes back by itself when its last owner drops it. Its contents are undefined.
    std::shared_ptr<HugeBuffer> lend(size_t num_bytes);

private:
    HugeBuffer take(size_t num_bytes);
    void give(HugeBuffer buffer);

    const size_t most_bytes_;
    const double most_spare_;
    std::mutex mutex_;
    std::vector<HugeBuffer> free_;  // the least recently used first
    size_t num_bytes_ = 0;
};

// A growing scratch area whose contents need not survive growing; aligned for any vector.
class Scratch {
public:
    template <class T>
    T* reserve(size_t count) {
        if (count * sizeof(T) > buffer_.size()) {
            buffer_ = {};  // first, so that there are never two
            buffer_ = HugeBuffer(count * sizeof(T) * 5 / 4);
        }
        return reinterpret_cast<T*>(buffer_.bytes());
    }

private:
    HugeBuffer buffer_;
};

}  // namespace headlong
