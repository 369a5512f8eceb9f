// How the attention of a pass is shared out among workers.
//
// An item is a few rows of a span with one kv head, over all chunks that they see. Items have one order, and each
// worker takes an equal part of their total cost, cut between chunks. So sequences of any lengths are shared evenly.
// Most items then belong to one worker, which finishes them alone; its results over single chunks stay in the first
// cache. Items that lie across a border are merged once all workers are done.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "blocks.hpp"
#include "kv_layer.hpp"
#include "pool.hpp"

namespace headlong {

struct AttendItem {
    size_t span;
    int kv_head;
    int64_t first_row, num_rows;
    int64_t num_chunks;   // that its last row sees
    int64_t num_queries;
    int64_t chunk_cost;
    int64_t start, stop;  // what all items before it cost, and with it
};

class AttendShares {
public:
    // Rows of one item. Few rows stay together, so that keys and values are read once, unless so many heads share them
    // that products take longer; of many, an item takes as many as fit into the first cache.
    static int64_t rows_each(const Span& span, int64_t heads_per_row) {
        if (span.num_rows > kFewRows) return std::max<int64_t>(1, kMaxQueries / heads_per_row);
        return std::clamp<int64_t>(kMostTogether / heads_per_row, 1, span.num_rows);
    }

    // Kv heads are outermost. Workers project heads in that order, so most attend to what they just wrote.
    void share_out(const std::vector<Span>& spans, const AttendShape& shape, int num_workers) {
        const int64_t heads_per_row = shape.heads_per_kv();
        int64_t total = 0;
        items_.clear();
        for (int kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
            for (size_t s = 0; s < spans.size(); ++s) {
                const int64_t each = rows_each(spans[s], heads_per_row);
                for (int64_t first = 0; first < spans[s].num_rows; first += each) {
                    const int64_t num_rows = std::min(each, spans[s].num_rows - first);
                    const int64_t num_chunks = ceil_div(spans[s].first_position + first + num_rows, kChunk);
                    const int64_t num_queries = num_rows * heads_per_row, cost = num_queries + kReadCost;
                    items_.push_back({s, kv_head, spans[s].first_row + first, num_rows, num_chunks, num_queries, cost,
                                      total, total + num_chunks * cost});
                    total = items_.back().stop;
                }
            }
        }
        borders_.resize(num_workers + 1);
        for (int worker = 0; worker <= num_workers; ++worker) borders_[worker] = total * worker / num_workers;
    }

    const std::vector<AttendItem>& items() const { return items_; }

    // Chunks of an item that a worker takes: those that begin in its share.
    Range chunks_of(const AttendItem& item, int worker) const {
        return {chunks_before(item, borders_[worker]), chunks_before(item, borders_[worker + 1])};
    }

    // Whether several workers have chunks of an item.
    bool is_cut(const AttendItem& item) const {
        return std::any_of(borders_.begin(), borders_.end(), [&](int64_t border) {
            const int64_t num_before = chunks_before(item, border);
            return num_before > 0 && num_before < item.num_chunks;
        });
    }

private:
    static constexpr int64_t kMaxQueries = 24;
    static constexpr int64_t kMostTogether = 256;  // queries of few rows; their partials over chunks must fit
    static constexpr int64_t kReadCost = 4;  // reading keys and values of a chunk, in queries over it

    // Chunks of an item that begin before a border.
    static int64_t chunks_before(const AttendItem& item, int64_t border) {
        if (border <= item.start) return 0;
        if (border >= item.stop) return item.num_chunks;
        return ceil_div(border - item.start, item.chunk_cost);
    }

    std::vector<AttendItem> items_;
    std::vector<int64_t> borders_;  // where the share of each worker begins, and where the last one ends
};

}  // namespace headlong
