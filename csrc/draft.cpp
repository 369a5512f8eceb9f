#include "draft.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "pack.hpp"
#include "pass.hpp"

namespace headlong {

namespace {

// What one worker found in its part of one row of logits.
struct alignas(64) Found {
    float best;
    bool is_broken;  // a NaN somewhere
    int64_t best_column;
    Winner winner;
};

class Draft {
public:
    Draft(Engine& engine, const DraftHead& head, std::vector<DraftRequest> requests, float* states)
        : engine_(engine), k_(engine.kernels), head_(head), requests_(std::move(requests)),
          drafted_(requests_.size()), chances_(requests_.size(), 1.0), state_(states),
          fused_(engine.workspace.fused.reserve<float>(requests_.size() * head.hidden_size())),
          pass_(engine, widest_input(), TeamScratch(engine.pool), needs()) {
        const size_t num_rows = requests_.size(), size = head.hidden_size();
        num_chunks_ = ceil_div(head.num_drafted(), kSumChunk);
        Workspace& work = engine.workspace;
        logits_ = work.logits.reserve<float>(num_rows * head.num_drafted());
        embedded_ = work.embedded.reserve<float>(num_rows * size);
        sums_ = work.sums.reserve<double>(num_rows * num_chunks_);
        found_ = work.found.reserve<Found>(num_rows * engine.pool.num_threads());
        for (size_t i = 0; i < num_rows; ++i) active_.push_back(i);
        place_rows();
    }

    void walk(Worker& worker) {
        while (true) {
            score(worker);
            weigh(worker);
            worker.barrier();
            if (worker.index == 0) retire(worker.count);
            worker.barrier();
            if (active_.empty()) return;
            step(worker);
        }
    }

    std::vector<Drafted> take() { return std::move(drafted_); }

private:
    struct Columns { int64_t first, stop; };

    const DraftRequest& request(size_t row) const { return requests_[active_[row]]; }
    size_t depth(size_t row) const { return drafted_[active_[row]].token_ids.size(); }
    float* logits(size_t row) const { return logits_ + row * head_.num_drafted(); }
    Found& found(size_t row, int owner) const { return found_[row * engine_.pool.num_threads() + owner]; }
    double temperature(size_t row) const { return request(row).rule.temperature; }

    // All rows at their last positions, to reserve scratch for.
    const PassInput& widest_input() {
        input_ = PassInput{head_.fusion ? fused_ : state_, static_cast<int64_t>(requests_.size()), {}, nullptr};
        for (const DraftRequest& request : requests_) {
            const auto row = static_cast<int64_t>(input_.spans.size());
            input_.spans.push_back({row, 1, request.first_position + request.num_tokens - 1});
        }
        return input_;
    }
    ScratchNeeds needs() const {
        ScratchNeeds needs = head_.layers.front().needs(input_.spans, k_);
        needs.include({.inputs = head_.lm_head.inputs()});
        if (head_.fusion) needs.include({.inputs = head_.fusion->fc.inputs()});
        return needs;
    }

    // Set the positions and caches of the rows that go on.
    void place_rows() {
        input_.num_rows = static_cast<int64_t>(active_.size());
        input_.spans.clear();
        caches_.clear();
        for (size_t row = 0; row < active_.size(); ++row) {
            const int64_t position = request(row).first_position + static_cast<int64_t>(depth(row)) - 1;
            input_.spans.push_back({static_cast<int64_t>(row), 1, position});
            caches_.push_back(request(row).cache);
        }
    }

    Columns own_columns(const Worker& worker) const {
        const Range chunks = worker.share(num_chunks_);
        return {chunks.first * kSumChunk, std::min(chunks.stop * kSumChunk, head_.num_drafted())};
    }

    // Logits of this worker's columns, and the largest of them.
    void score(Worker& worker) {
        const int width = head_.lm_head.weight->width;
        const Columns own = own_columns(worker);
        const Range tiles{own.first / width, ceil_div(own.stop, width)};
        const Norm* norm = head_.carries_normed ? nullptr : &head_.norm;
        pass_.project_tiles(worker, state_, norm, head_.lm_head, tiles, logits_);
        for (size_t row = 0; row < active_.size(); ++row) {
            Found& mine = found(row, worker.index);
            mine.is_broken = false;
            mine.best = -std::numeric_limits<float>::infinity();
            mine.best_column = own.first;
            if (own.first >= own.stop) continue;
            for (int64_t i = own.first; i < own.stop && head_.logit_cap > 0; ++i) {
                logits(row)[i] = std::tanh(logits(row)[i] / head_.logit_cap) * head_.logit_cap;
            }
            mine.best_column = own.first + k_.argmax(logits(row) + own.first, own.stop - own.first);
            mine.best = logits(row)[mine.best_column];
            mine.is_broken = std::isnan(mine.best);
        }
        worker.barrier();
    }

    // The worker that found the best logit of a row, the lowest column among equals; -1 when the row is broken.
    int best_owner(size_t row, int num_workers) const {
        int best = 0;
        for (int m = 0; m < num_workers; ++m) {
            if (found(row, m).is_broken) return -1;
            if (found(row, m).best > found(row, best).best) best = m;
        }
        return std::isfinite(found(row, best).best) ? best : -1;
    }

    // Probabilities of this worker's columns, and the winner among them where noise decides.
    void weigh(Worker& worker) {
        const Columns own = own_columns(worker);
        for (size_t row = 0; row < active_.size(); ++row) {
            const int owner = best_owner(row, worker.count);
            if (owner < 0 || request(row).rule.has_filters(head_.num_drafted())) continue;
            const double best = found(row, owner).best, heat = temperature(row);
            for (int64_t first = own.first; first < own.stop; first += kSumChunk) {
                const int64_t count = std::min(kSumChunk, own.stop - first);
                sums_[row * num_chunks_ + first / kSumChunk] =
                    sum_of_chunk(logits(row) + first, count, best, heat > 0 ? heat : 1.0, k_);
            }
            found(row, worker.index).winner = {};
            if (heat > 0 && own.first < own.stop) {
                found(row, worker.index).winner = run_race(race(row, own, found(row, owner)), k_);
            }
        }
    }

    int64_t token_id(int64_t column) const { return head_.vocabulary.empty() ? column : head_.vocabulary[column]; }

    uint64_t key(size_t row) const {
        return noise_key(request(row).rule.seed, request(row).token_position + static_cast<int64_t>(depth(row)), k_);
    }

    // A race over some columns. The likeliest token runs in all of them: workers whose columns hold no
    // likely one would otherwise have to read the noise of nearly every token.
    Race race(size_t row, Columns columns, const Found& best) const {
        const int64_t* ids = head_.vocabulary.empty() ? nullptr : head_.vocabulary.data() + columns.first;
        const uint64_t noise = key(row);
        return {logits(row) + columns.first, ids, columns.stop - columns.first, best.best, temperature(row),
                noise, columns.first, enter_best(noise, token_id(best.best_column), best.best_column, k_)};
    }

    // Append the picked token of a row to its draft.
    void settle(size_t row, int num_workers) {
        Drafted& draft = drafted_[active_[row]];
        const int owner = best_owner(row, num_workers);
        if (owner < 0) {
            draft.is_broken = true;
            return;
        }
        const double best = found(row, owner).best, heat = temperature(row) > 0 ? temperature(row) : 1.0;
        int64_t column = found(row, owner).best_column;
        double total = 0.0;
        if (request(row).rule.has_filters(head_.num_drafted())) {
            column = race_among_survivors(row, best, total);
        } else {
            for (int64_t chunk = 0; chunk < num_chunks_; ++chunk) total += sums_[row * num_chunks_ + chunk];
            Winner winner;
            for (int m = 0; m < num_workers && temperature(row) > 0; ++m) {
                const Winner& other = found(row, m).winner;
                if (other.column >= 0 && other.beats(winner)) winner = other;
            }
            if (winner.column >= 0) column = winner.column;
        }
        const double prob = std::exp((static_cast<double>(logits(row)[column]) - best) / heat) / total;
        draft.token_ids.push_back(token_id(column));
        draft.probs.push_back(prob);
        chances_[active_[row]] *= request(row).calibration == nullptr ? prob : (*request(row).calibration)(prob);
    }

    int64_t race_among_survivors(size_t row, double best, double& total) const {
        const int64_t* vocabulary = head_.vocabulary.empty() ? nullptr : head_.vocabulary.data();
        const Survivors found =
            survivors_of(logits(row), head_.num_drafted(), vocabulary, best, request(row).rule, k_);
        const auto count = static_cast<int64_t>(found.columns.size());
        total = sum_relative(found.logits.data(), count, best, temperature(row), k_);
        return race_among(found, best, temperature(row), key(row), k_);
    }

    // Pick the next token of all rows, and keep those that go on, closed up.
    void retire(int num_workers) {
        const size_t size = head_.hidden_size();
        std::vector<size_t> going_on;
        for (size_t row = 0; row < active_.size(); ++row) {
            settle(row, num_workers);
            const size_t index = active_[row];
            const Drafted& draft = drafted_[index];
            const bool is_done = draft.is_broken || !(chances_[index] >= requests_[index].threshold) ||
                                 static_cast<int64_t>(draft.token_ids.size()) >= requests_[index].num_tokens;
            if (is_done) continue;
            if (going_on.size() < row) {
                std::memcpy(state_ + going_on.size() * size, state_ + row * size, size * sizeof(float));
            }
            going_on.push_back(index);
        }
        active_ = std::move(going_on);
        place_rows();
        for (size_t row = 0; row < active_.size(); ++row) {
            float* numbers = embedded_ + row * size;
            unpack_row(*head_.embedding, k_, drafted_[active_[row]].token_ids.back(), numbers);
            if (head_.embedding_scale == 1.0f) continue;
            for (size_t i = 0; i < size; ++i) numbers[i] *= head_.embedding_scale;
        }
        input_.beside = head_.fusion ? nullptr : embedded_;
    }

    // The layer's input: fc of normed embeddings and states side by side.
    void fuse(Worker& worker, const Fusion& fusion) {
        const ProjectionInput embedding_first{state_, &fusion.state_norm, embedded_, &fusion.embedding_norm};
        const ProjectionInput state_first{embedded_, &fusion.embedding_norm, state_, &fusion.state_norm};
        const Activations prepared =
            pass_.prepare(worker, fusion.is_state_first ? state_first : embedding_first, {&fusion.fc});
        pass_.multiply(worker, prepared, {&fusion.fc}, fused_, fusion.fc.outputs());
    }

    // The head's layer over the rows that go on; leaves their states.
    void step(Worker& worker) {
        if (head_.fusion) {
            fuse(worker, *head_.fusion);
            worker.barrier();
        }
        head_.layers.front().run(pass_, worker, caches_);
        if (!head_.fusion && !head_.carries_normed) return;
        const int64_t size = head_.hidden_size();
        const Range own = worker.share(input_.num_rows);
        for (int64_t row = own.first; row < own.stop; ++row) {
            float* to = state_ + row * size;
            const float* from = (head_.fusion ? fused_ : state_) + row * size;
            if (head_.carries_normed) {
                k_.rms_norm(from, head_.norm.weight.data(), head_.norm.eps, size, to);
            } else {
                std::memcpy(to, from, size * sizeof(float));
            }
        }
        worker.barrier();
    }

    Engine& engine_;
    const Kernels& k_;
    const DraftHead& head_;
    std::vector<DraftRequest> requests_;
    std::vector<Drafted> drafted_;
    std::vector<double> chances_;     // that all of a draft is accepted
    float* state_;                    // (rows, hidden)
    float* fused_;                    // (rows, hidden)
    PassInput input_;
    Pass pass_;
    std::vector<size_t> active_;      // requests that go on, in the order of rows
    MixerStates caches_;
    int64_t num_chunks_ = 0;
    float* logits_ = nullptr;         // (rows, columns)
    float* embedded_ = nullptr;       // (rows, hidden)
    double* sums_ = nullptr;          // (rows, chunks)
    Found* found_ = nullptr;          // (rows, workers)
};

void require(bool is_fine, const char* what) {
    if (!is_fine) throw std::invalid_argument(what);
}

}  // namespace

double Calibration::operator()(double prob) const {
    if (std::isnan(prob)) return prob;  // it belongs to no range
    return chances[std::upper_bound(edges.begin(), edges.end(), prob) - edges.begin()];
}

void DraftHead::check() const {
    const int64_t size = hidden_size();
    require(layers.size() == 1 && layers[0].mixer != nullptr && layers[0].channel != nullptr,
            "a drafting head has one whole layer");
    layers[0].mixer->check();
    layers[0].channel->check();
    require(embedding != nullptr && lm_head.weight != nullptr, "a drafting head lacks weights");
    require(layers[0].mixer->hidden_size() == size && layers[0].channel->hidden_size() == size &&
                embedding->inputs == size && lm_head.inputs() == size,
            "parts of a drafting head differ in size");
    require(layers[0].mixer->reads_beside() != fusion.has_value(),
            "a drafting head reads embeddings either beside the state or fused with it");
    if (fusion) {
        require(fusion->fc.weight != nullptr && fusion->fc.inputs() == 2 * size && fusion->fc.outputs() == size &&
                    static_cast<int64_t>(fusion->embedding_norm.weight.size()) == size &&
                    static_cast<int64_t>(fusion->state_norm.weight.size()) == size,
                "the fusion of a drafting head has another size");
    }
    require(vocabulary.empty() || static_cast<int64_t>(vocabulary.size()) == num_drafted(),
            "the draft vocabulary does not fit the LM head");
    for (const int64_t id : vocabulary) require(id >= 0 && id < embedding->outputs, "a draft token does not exist");
    require(!vocabulary.empty() || num_drafted() <= embedding->outputs, "draft tokens lack embeddings");
}

std::vector<Drafted> run_draft(
    Engine& engine, const DraftHead& head, std::vector<DraftRequest> requests, float* states) {
    int64_t num_positions = 0;
    for (const DraftRequest& request : requests) {
        num_positions = std::max(num_positions, request.first_position + request.num_tokens);
    }
    head.layers[0].mixer->prepare(num_positions);
    engine.workspace.begin(static_cast<int64_t>(requests.size()));
    Draft draft(engine, head, std::move(requests), states);
    engine.pool.run([&](Worker& worker) { draft.walk(worker); });
    return draft.take();
}

}  // namespace headlong
