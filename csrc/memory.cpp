#include "memory.hpp"

#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include <sys/mman.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace headlong {

namespace {
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kPage = size_t{64} << 10;  // at most: 4 KiB on x86, 16 on Apple's processors, 64 on some ARM
constexpr size_t kCacheLine = 64;
constexpr size_t kSlab = size_t{16} << 20;  // pages of it that nothing is put in are never touched

size_t round_up(size_t value, size_t step) { return (value + step - 1) / step * step; }
}  // namespace

HugeBuffer::HugeBuffer(size_t num_bytes) : size_(num_bytes) {
    if (num_bytes == 0) return;
    // Scratch of a few rows does not need a huge page of its own.
    is_mapped_ = num_bytes >= kHugePage / 2;
    if (!is_mapped_) {
        bytes_ = static_cast<uint8_t*>(std::aligned_alloc(kCacheLine, round_up(size_, kCacheLine)));
        if (bytes_ == nullptr) throw std::bad_alloc();
        std::memset(bytes_, 0, size_);
        return;
    }
    // A huge page must start on its own boundary, which mmap does not promise: map one page more
    // and give back what lies around it.
    const size_t kept = round_up(size_, kPage);
    const size_t mapped = kept + kHugePage;
    void* start = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) throw std::bad_alloc();
    auto* first = static_cast<uint8_t*>(start);
    auto* aligned = reinterpret_cast<uint8_t*>(
        round_up(reinterpret_cast<uintptr_t>(first), kHugePage));
    if (aligned > first) munmap(first, aligned - first);
    if (first + mapped > aligned + kept) munmap(aligned + kept, first + mapped - aligned - kept);
#ifdef MADV_HUGEPAGE
    madvise(aligned, kept, MADV_HUGEPAGE);  // a refusal costs speed, not correctness
#endif
    bytes_ = aligned;
}

void HugeBuffer::collapse(size_t num_bytes) {
    // Linux 6.1 and later; a refusal costs speed, not correctness.
    constexpr int kMadviseCollapse = 25;
    if (is_mapped_) madvise(bytes_, num_bytes / kHugePage * kHugePage, kMadviseCollapse);
}

HugeBuffer::~HugeBuffer() {
    if (is_mapped_) {
        munmap(bytes_, round_up(size_, kPage));
    } else {
        std::free(bytes_);
    }
}

HugeBuffer::HugeBuffer(HugeBuffer&& other) noexcept
    : bytes_(std::exchange(other.bytes_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      is_mapped_(std::exchange(other.is_mapped_, false)) {}

HugeBuffer& HugeBuffer::operator=(HugeBuffer&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(size_, other.size_);
    std::swap(is_mapped_, other.is_mapped_);
    return *this;
}

std::shared_ptr<HugeBuffer> Recycler::lend(size_t num_bytes) {
    return {new HugeBuffer(take(num_bytes)), [keeper = shared_from_this()](HugeBuffer* buffer) {
        keeper->give(std::move(*buffer));
        delete buffer;
    }};
}

HugeBuffer Recycler::take(size_t num_bytes) {
    {
        const std::lock_guard lock(mutex_);
        auto best = free_.end();  // the tightest, so that larger ones are left for larger requests
        for (auto place = free_.begin(); place != free_.end(); ++place) {
            const bool fits = place->size() >= num_bytes && double(place->size()) <= most_spare_ * double(num_bytes);
            if (fits && (best == free_.end() || place->size() < best->size())) best = place;
        }
        if (best != free_.end()) {
            HugeBuffer found = std::move(*best);
            num_bytes_ -= found.size();
            free_.erase(best);
            return found;
        }
    }
    return HugeBuffer(num_bytes);
}

void Recycler::give(HugeBuffer buffer) {
    if (buffer.size() > most_bytes_) return;
    const std::lock_guard lock(mutex_);
    num_bytes_ += buffer.size();
    free_.push_back(std::move(buffer));
    while (num_bytes_ > most_bytes_) {
        num_bytes_ -= free_.front().size();
        free_.erase(free_.begin());
    }
}

Piece Arena::take(size_t num_bytes) {
    const size_t needed = round_up(num_bytes, kCacheLine);
    if (slab_ == nullptr || used_ + needed > slab_->size()) {
        auto slab = std::make_shared<HugeBuffer>(needed > kSlab ? needed : kSlab);
        if (needed > kSlab) {  // the shared slab still has room
            full_.push_back({slab, needed});
            return {slab, slab->bytes()};
        }
        if (slab_ != nullptr) full_.push_back({slab_, used_});
        slab_ = std::move(slab);
        used_ = 0;
    }
    Piece piece{slab_, slab_->bytes() + used_};
    used_ += needed;
    return piece;
}

void Arena::settle() {
    if (slab_ != nullptr) slab_->collapse(used_);
    for (const Filled& filled : full_) {
        if (const auto slab = filled.slab.lock()) slab->collapse(filled.used);
    }
    full_.clear();
}

void trim_heap() {
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

}  // namespace headlong
