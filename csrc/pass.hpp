// One pass through blocks, as every worker of the team walks it; private to the engine.
#pragma once

#include <initializer_list>

#include "attend_shares.hpp"
#include "engine.hpp"
#include "team_scratch.hpp"

namespace headlong {

struct Fusion;

class Pass {
public:
    // Reserves scratch for everything these blocks and projections need, before the team starts. Every block reads
    // `input` again. It may have fewer rows by then, but `input.x` must be the same.
    Pass(Engine& engine, const PassInput& input, const TeamScratch& team, const std::vector<Layer>& layers,
         const std::vector<const Linear*>& others = {});
    // The same for a single projection, and for the keys and values of a block alone.
    Pass(Engine& engine, const PassInput& input, const Linear& linear);
    Pass(Engine& engine, const PassInput& input, const Attention& block);

    // All workers call these before the first block and after the last.
    void begin(Worker& worker) const { x_.load(worker, rows() * hidden_size_); }
    void end(Worker& worker) const { x_.store(worker, rows() * hidden_size_); }
    float* x(const Worker& worker) const { return x_.mine(worker); }

    void attention(Worker& worker, const Attention& block, const std::vector<KVLayer*>& caches);
    // Write the keys and values that `attention` would write, and leave it at that.
    void remember(Worker& worker, const Attention& block, const std::vector<KVLayer*>& caches);
    void gated_mlp(Worker& worker, const GatedMlp& block);
    void project(Worker& worker, const float* x, const Norm* norm, const Linear& linear, float* y);
    // The same for some tiles only, which this worker takes.
    void project_tiles(Worker& worker, const float* x, const Norm* norm, const Linear& linear,
                       Range tiles, float* y);
    // y = fc of normed embeddings and states side by side.
    void fuse(Worker& worker, const float* states, const float* embedded, const Fusion& fusion, float* y);

private:
    // Where the rows of a projection's input are prepared.
    struct Entry {
        const float* x;
        const Norm* norm = nullptr;        // null takes x as it is
        const float* beside = nullptr;     // goes in front of x
        const Norm* beside_norm = nullptr;
    };
    struct Needs { int64_t inputs = 0; bool groups = false, values = false; };

    int64_t rows() const { return input_.num_rows; }
    bool is_short() const { return rows() <= kFewRows; }
    Needs needs(std::initializer_list<const Linear*> readers) const;
    void reserve(const Needs& needs, int64_t inner_size);

    // Norm and quantise the rows as `readers` want them, and return when all are there.
    Activations enter(Worker& worker, const Entry& entry, std::initializer_list<const Linear*> readers);
    void enter_row(const Entry& entry, int64_t row, const Needs& needs, float* values, ActGroup* groups) const;

    // y = every linear's result side by side, each worker doing its share of the tiles.
    void multiply(Worker& worker, const Activations& x, std::initializer_list<const Linear*> linears,
                  float* y, int64_t ldy) const;
    void multiply_tiles(const Activations& x, const Linear& linear, int64_t first_tile,
                        int64_t stop_tile, float* y, int64_t ldy) const;
    // x += norm(linear(inner)), and wait.
    void add_result(Worker& worker, const Activations& inner, const Linear& linear,
                    const std::optional<Norm>& norm) const;
    void add_normed(Worker& worker, const Activations& inner, const Linear& linear, const Norm& norm) const;
    void add_columns(Worker& worker, const Activations& inner, const Linear& linear) const;

    // One head of queries, keys or values; `place` is where it stands among all heads of a projected row.
    struct Head { bool is_query, is_key; int64_t index, place; };
    // The heads of a block in the order in which workers share them: those of a kv head side by side. A row holds
    // queries, keys and values one after the other; no queries where nobody asks for them.
    struct Heads {
        int64_t num_queries, num_kv;

        int64_t count() const { return num_queries + 2 * num_kv; }
        Head at(int64_t item) const {
            const int64_t queries_each = num_queries / num_kv;
            const int64_t kv = item / (queries_each + 2), query = item % (queries_each + 2);
            if (query < queries_each) return {true, false, kv * queries_each + query, kv * queries_each + query};
            const bool is_key = query == queries_each;
            return {false, is_key, kv, num_queries + (is_key ? 0 : num_kv) + kv};
        }
    };

    Entry entry(const Worker& worker, const Attention& block) const;
    void project_heads(Worker& worker, const Activations& x, const Attention& block, Heads heads,
                       const std::vector<KVLayer*>& caches) const;
    void turn_and_store(const Worker& worker, const Attention& block, const Head& head, float* projected, int64_t stride,
                        Range own_rows, const std::vector<KVLayer*>& caches) const;
    // The first of a row's queries with one kv head: those of a kv head stand side by side, in order of rows.
    int64_t first_query(int64_t kv_head, int64_t row, int64_t heads_per_kv) const {
        return (kv_head * rows() + row) * heads_per_kv;
    }
    void attend(Worker& worker, const Attention& block, const std::vector<KVLayer*>& caches,
                const AttendShares& shares) const;
    void attend_item(Worker& worker, const Attention& block, const KVLayer& cache, const AttendItem& item,
                     Range own, const int16_t* next_keys) const;
    AttendTask make_task(const Worker& worker, const Attention& block, const KVLayer& cache, const AttendItem& item,
                         int64_t chunk) const;
    void merge_all(const uint8_t* right, const KVLayer& shape, int64_t num_queries, uint8_t* left) const;
    bool merge_cuts(Worker& worker, const Attention& block, const KVLayer& shape, const AttendShares& shares) const;
    void finish_query(const Worker& worker, const Attention& block, const Partial& running, const AttendItem& item,
                      int64_t query) const;
    size_t cut_bytes(const Attention& block) const;
    int64_t cut_place(int owner, Range chunks) const;
    void publish_cut(const Worker& worker, const AttendItem& item, int64_t place, size_t num_runs,
                     size_t query_bytes) const;

    Engine& engine_;
    const Kernels& k_;
    const PassInput& input_;
    const TeamScratch team_;
    int64_t hidden_size_ = 0;
    SharedBuffer<float> x_;                // (rows, hidden)
    SharedBuffer<ActGroup> inner_groups_;  // what a block's second projection reads
    float* inner_values_ = nullptr;        // (rows, inner), the same where its weights are not quantised
    SharedBuffer<uint8_t> queries_;        // (kv heads, rows, heads of each), rotated and rounded
    SharedBuffer<uint8_t> partials_;       // of every worker: its parts of two items that it shares with others
    int64_t bytes_per_cut_ = 0;
    WorkerBuffers<ActGroup> groups_;       // (rows, inputs / 32)
    WorkerBuffers<float> values_;          // (rows, inputs)
    WorkerBuffers<float> projected_;       // (rows, q + k + v), or (rows, k + v) without queries
    WorkerBuffers<float> results_;         // (rows, hidden) as a whole, or a worker's columns of them
    WorkerBuffers<float> tiles_;           // a few outputs of gate and of up for all rows
};

// Outputs of gate and up that are multiplied, activated and quantised together.
constexpr int64_t kMlpUnit = 64;

}  // namespace headlong
