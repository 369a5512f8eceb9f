// The kernels of one instruction set as a table of functions, picked once at run time.
#pragma once

#include <cstdint>

#include "formats.hpp"

namespace headlong {

// Queries, keys and values are vectors of 16-bit integers with a norm of kShort, so that the product of two of them
// is at most kShort². Weights of at most kShort that add up to no more than kMostWeight leave sums of values below
// 2^31, rounding included.
constexpr float kShort = 32767.0f;
constexpr float kMostWeight = 65000.0f;

constexpr int kMaxBlock = 64;  // numbers that are skipped together when their largest is too small

// Noise that tokens need to win a race: those with a logit of at least `near`, and all others.
struct Needed {
    float near;
    uint64_t bits_near, bits_far;
};

// The positions of a chunk that a query sees, relative to the chunk's start.
struct Sight { int start, stop; };

// One head of one row's queries. Its `values` follow directly in memory, padded to whole lines.
struct alignas(64) Query {
    float scale;  // what 1 of the values stands for

    int16_t* values() { return reinterpret_cast<int16_t*>(&scale + 1); }
    const int16_t* values() const { return reinterpret_cast<const int16_t*>(&scale + 1); }
    static size_t bytes(int key_dim) { return (sizeof(float) + key_dim * sizeof(int16_t) + 63) / 64 * 64; }
};

// The softmax of one query over some positions, not yet divided: what chunks leave to be merged.
// Its `values` follow directly in memory, padded to whole vectors.
struct alignas(64) Partial {
    float largest;
    float sum;

    float* values() { return reinterpret_cast<float*>(this + 1); }
    const float* values() const { return reinterpret_cast<const float*>(this + 1); }
    static size_t bytes(int padded_dim) { return (sizeof(Partial) + padded_dim * 4 + 63) / 64 * 64; }
};

// Rows × grouped heads that attend over one chunk of one kv head.
struct AttendTask {
    const int16_t* keys;         // blocks of the chunk
    const int16_t* values;       // pairs of positions of the chunk
    const float* key_scales;     // one per position
    const float* value_scales;
    const int16_t* next_keys;    // of the chunk that follows; fetched meanwhile
    const uint8_t* queries;      // in order of rows and heads
    size_t query_bytes;
    int num_rows;
    int heads_per_row;       // query heads that share this kv head
    int key_dim;
    int padded_dim;          // of values
    int64_t first_position;  // of the first row, relative to the chunk's start
    int64_t window;          // 0 sees all
    int chunk;               // positions of a chunk
    uint8_t* partials;       // one per query
    size_t partial_bytes;

    int num_queries() const { return num_rows * heads_per_row; }
    const Query& query(int index) const { return *reinterpret_cast<const Query*>(queries + index * query_bytes); }
    Partial& partial(int index) const {
        return *reinterpret_cast<Partial*>(partials + index * partial_bytes);
    }
    // A row sees the positions up to its own, at most `window` of them; never beyond the chunk.
    Sight sight(int index) const {
        const int64_t own = first_position + index / heads_per_row;
        const int64_t start = window > 0 && own + 1 > window ? own + 1 - window : 0;
        const int64_t stop = own + 1 < chunk ? own + 1 : chunk;
        return {static_cast<int>(start < chunk ? start : chunk), static_cast<int>(stop > 0 ? stop : 0)};
    }
};

// Rows of a gated delta net that update, and may read, one block of columns of a value head's matrix.
struct DeltaTask {
    float* memory;         // (key_dim, width of a vector)
    int64_t key_dim;
    int64_t num_rows;
    const float* keys;
    int64_t key_stride;    // from row to row
    const float* queries;  // null where nothing is read
    int64_t query_stride;
    const float* values;   // of these columns
    int64_t value_stride;
    const float* decays;
    const float* betas;
    int64_t factor_stride;
    float* read;           // of these columns
    int64_t read_stride;
};

struct Kernels {
    const char* name;
    int width;              // lanes of a vector
    int tile_width;         // outputs of a tile of weights
    bool has_unsigned_q8;   // 8-bit weights are stored + 128
    void (*matmul)(const Matrix& m, int64_t first_tile, int64_t stop_tile, const Activations& x,
                   int64_t num_rows, float* y, size_t ldy);
    void (*rms_norm)(const float* x, const float* weight, float eps, int64_t size, float* out);
    void (*quantise)(const float* x, int64_t num_groups, ActGroup* out);
    void (*rotate)(float* head, const float* cosines, const float* sines, int64_t half);
    void (*activate)(const float* gate, const float* up, Activation activation, int64_t size, float* out);
    void (*add_silu)(const float* x, const float* y, int64_t size, float* out);
    void (*add)(const float* x, const float* y, int64_t size, float* out);
    void (*add_scaled)(const float* x, float scale, int64_t size, float* sum);
    float (*shorten)(const float* x, int64_t size, int16_t* out);
    int64_t (*argmax)(const float* x, int64_t size);
    void (*noise_bits)(uint64_t key, const int64_t* token_ids, int64_t first, int64_t count, uint64_t* out);
    bool (*any_reaches)(const float* logits, const uint64_t* bits, const Needed& needed);  // of kMaxBlock
    float (*sum_relative)(const float* x, int64_t size, float best, float temperature);
    double (*sum_relative_exactly)(const float* x, int64_t size, double best, double temperature);
    void (*block_maxima)(const float* x, int64_t size, float* out);  // of every kMaxBlock numbers
    void (*attend)(const AttendTask& task);
    void (*merge)(const Partial& part, int size, Partial& running);
    void (*finish)(const Partial& running, int size, float* out);
    void (*convolve)(const float* const* inputs, const float* const* factors, int width, int64_t size, float* out);
    void (*multiply_gate)(float* x, const float* gate, int64_t size);
    void (*delta_rows)(const DeltaTask& task);
    float (*read)(const float* first, int64_t count);  // touches every number, for bandwidth
};

const Kernels& portable_kernels();
const Kernels* avx2_kernels();    // null where the compiler cannot build them
const Kernels* avx512_kernels();

// The best kernels this processor runs, or those named ("portable", "avx2", "avx512"); throws
// std::invalid_argument when the name is unknown or the processor cannot run them.
const Kernels& pick_kernels(const char* name);

}  // namespace headlong
