// The order in which results over chunks are merged into one, whichever workers made them.
//
// Sums in floating point depend on their order, and a row must not depend on how chunks were shared out. So chunks are
// merged pairwise, [0] with [1], [2] with [3], then [0, 1] with [2, 3] and so on, and what has no partner at the
// right end from right to left. Empty results change nothing, so rows that see fewer chunks get theirs all the same.
// A worker can merge its own results before others read them: what moves between cores then grows with the
// logarithm of the chunks, not with their number.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace headlong {

// Chunks [start, start + size) and their results; size is a power of two, start a multiple of it.
struct ChunkRun {
    int64_t start, size;
    uint8_t* parts;
};

// Runs that wait at most for others, over so many chunks: sizes rise, then fall, two for every power of two.
inline size_t most_waiting(int64_t num_chunks) { return 2 * std::bit_width(uint64_t(num_chunks)); }

// `Merge` is called with the results of two neighbours, of which the left one takes in the right one.
template <class Merge>
class MergeTree {
public:
    explicit MergeTree(Merge merge) : merge_(merge) {}

    size_t num_waiting() const { return num_waiting_; }

    // The run that follows the ones before, which may have started anywhere.
    void add(ChunkRun run) {
        while (num_waiting_ > 0 && is_partner(waiting_[num_waiting_ - 1], run)) {
            const ChunkRun left = waiting_[--num_waiting_];
            merge_(run.parts, left.parts);
            run = {left.start, 2 * left.size, left.parts};
        }
        waiting_[num_waiting_++] = run;
    }

    // Chunks that follow, merged among themselves as far as they can be; their runs lie `stride` bytes apart.
    void add_merged(int64_t first, int64_t stop, uint8_t* parts, size_t stride) {
        while (first < stop) {
            int64_t size = first == 0 ? int64_t(std::bit_floor(uint64_t(stop))) : first & -first;
            while (first + size > stop) size /= 2;
            add({first, size, parts});
            first += size;
            parts += stride;
        }
    }

    // Merge all that waits into the first run, and return its results.
    const uint8_t* finish() {
        for (; num_waiting_ > 1; --num_waiting_) {
            merge_(waiting_[num_waiting_ - 1].parts, waiting_[num_waiting_ - 2].parts);
        }
        return waiting_[0].parts;
    }

private:
    static bool is_partner(const ChunkRun& left, const ChunkRun& right) {
        return left.size == right.size && left.start + left.size == right.start && (right.start & right.size) != 0;
    }

    Merge merge_;
    std::array<ChunkRun, 128> waiting_;
    size_t num_waiting_ = 0;
};

}  // namespace headlong
