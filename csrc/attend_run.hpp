// Attention of a pass over the keys and values in caches, whichever mixer wrote them there.
//
// A mixer writes its rows' keys and values to the caches and puts its queries here; behind a barrier, `attend` hands
// every query's result to `finish_query`.
#pragma once

#include "attend_shares.hpp"
#include "pass.hpp"

namespace headlong {

// What one worker does of it, for one layer.
class AttendRun {
public:
    // The scratch for queries and for the parts of items that workers share.
    static ScratchNeeds needs(const AttendShape& shape, const std::vector<Span>& spans, const Kernels& kernels);

protected:
    AttendRun(const Pass& pass, Worker& worker, const AttendShape& shape, const MixerStates& states)
        : pass_(pass), k_(pass.kernels), buffers_(pass.buffers), worker_(worker), states_(states), shape_(shape),
          padded_dim_(KVLayer::padded(shape.value_dim, pass.kernels.width)),
          query_bytes_(Query::bytes(shape.key_dim)), partial_bytes_(Partial::bytes(padded_dim_)) {}
    ~AttendRun() = default;

    // Take one query's result over all that it sees.
    virtual void finish_query(const Partial& running, int64_t row, int64_t head) const = 0;

    KVLayer& cache(size_t span) const { return static_cast<KVLayer&>(*states_[span]); }
    // Round a query and put it where it is read; `scale` multiplies its products with keys.
    void put_query(int64_t row, int64_t head, const float* numbers, float scale) const;
    // Every worker calls it behind a barrier, and finds all queries finished when it returns.
    void attend() const;

    const Pass& pass_;
    const Kernels& k_;
    const PassBuffers& buffers_;
    Worker& worker_;
    const MixerStates& states_;

private:
    // The first of a row's queries with one kv head: those of a kv head stand side by side, in order of rows.
    int64_t first_query(int64_t kv_head, int64_t row) const {
        return (kv_head * pass_.rows() + row) * shape_.heads_per_kv();
    }
    // Where a worker leaves its part of an item that it shares with others. It has two such items at most: one that its
    // share begins in the middle of, and one that its share ends in the middle of.
    int64_t cut_place(int worker, Range chunks) const {
        const int64_t bytes = buffers_.bytes_per_cut;
        return worker * page_apart<uint8_t>(2 * bytes) + (chunks.first > 0 ? 0 : bytes);
    }

    AttendTask make_task(const AttendItem& item, int64_t chunk) const;
    void attend_own(const AttendShares& shares) const;
    void attend_item(const AttendItem& item, Range own, const int16_t* next_keys) const;
    void publish_cut(const AttendItem& item, int64_t place, size_t num_runs) const;
    void merge_all(const uint8_t* right, int64_t num_queries, uint8_t* left) const;
    bool merge_cuts(const AttendShares& shares) const;
    void finish(const uint8_t* result, const AttendItem& item, int64_t query) const;

    const AttendShape shape_;
    const int padded_dim_;
    const size_t query_bytes_, partial_bytes_;
};

}  // namespace headlong
