// Memory in huge pages where the system gives them: weights are streamed once per pass, and with
// 4 KiB pages the page walks alone cost a quarter of the bandwidth.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

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

private:
    std::shared_ptr<HugeBuffer> slab_;
    size_t used_ = 0;
};

// A growing scratch area whose contents need not survive growing; aligned for any vector.
class Scratch {
public:
    template <class T>
    T* room(size_t count) {
        if (count * sizeof(T) > buffer_.size()) buffer_ = HugeBuffer(count * sizeof(T) * 5 / 4);
        return reinterpret_cast<T*>(buffer_.bytes());
    }

private:
    HugeBuffer buffer_;
};

}  // namespace headlong
