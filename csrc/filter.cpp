// Top-k, top-p and min-p: which columns of a row stay. ops/filters.py has the definitions.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "pick.hpp"

namespace headlong {

namespace {

constexpr double kSumError = 2e-5;  // several times what sum_relative is ever off
constexpr int64_t kFewToSort = 64;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kReaches[] = {2.0, 4.0, 8.0, 16.0, kInfinity};  // how far down top-p looks, in temperatures

// A row of logits, or what is left of one, that can be asked for its large ones without reading all of it.
class Ranking {
public:
    Ranking(const float* logits, int64_t count, const Kernels& kernels)
        : logits_(logits), count_(count), maxima_(ceil_div(count, kMaxBlock)) {
        kernels.block_maxima(logits, count, maxima_.data());
    }

    // A number that at least k logits reach, as high as it is cheaply known.
    float floor_of(int64_t k) const {
        if (k > static_cast<int64_t>(maxima_.size())) return -kInfinity;
        std::vector<float> maxima = maxima_;
        std::nth_element(maxima.begin(), maxima.begin() + (k - 1), maxima.end(), std::greater<>());
        return maxima[k - 1];
    }

    // The columns whose logits are at least `bar` and below `ceiling`, ascending.
    std::vector<int64_t> between(float bar, float ceiling) const {
        std::vector<int64_t> columns;
        for (size_t block = 0; block < maxima_.size(); ++block) {
            if (maxima_[block] < bar) continue;
            const int64_t first = block * kMaxBlock, stop = std::min<int64_t>(first + kMaxBlock, count_);
            size_t num_found = columns.size();
            columns.resize(num_found + kMaxBlock);
            // Every column is written, and stays if it belongs there: a branch could not be predicted here.
            for (int64_t i = first; i < stop; ++i) {
                columns[num_found] = i;
                num_found += (logits_[i] >= bar) & (logits_[i] < ceiling);
            }
            columns.resize(num_found);
        }
        return columns;
    }
    std::vector<int64_t> at_least(float bar) const {
        std::vector<int64_t> columns = between(bar, kInfinity);
        return columns;
    }
    std::vector<float> logits_of(const std::vector<int64_t>& columns) const {
        std::vector<float> logits;
        logits.reserve(columns.size());
        for (const int64_t i : columns) logits.push_back(logits_[i]);
        return logits;
    }

    // The first `count` columns of the ranking by logit and column; the last of them has logit `last`.
    std::vector<int64_t> head(float last, int64_t count) const {
        std::vector<int64_t> columns = at_least(last);
        auto num_spare = static_cast<int64_t>(columns.size()) - count;  // of those equal to the last
        for (auto it = columns.end(); num_spare > 0 && it != columns.begin();) {
            if (logits_[*--it] != last) continue;
            it = columns.erase(it);
            --num_spare;
        }
        return columns;
    }

    std::vector<int64_t> top(int64_t k) const {
        std::vector<float> pool = logits_of(at_least(floor_of(k)));
        std::nth_element(pool.begin(), pool.begin() + (k - 1), pool.end(), std::greater<>());
        return head(pool[k - 1], k);
    }

    // The shortest head of the ranking whose probabilities reach `mass`; all of it if none does. Goes down
    // step by step, and sorts only the step in which that happens. Empty when `mass` is only known up to
    // `slack` and that might make a difference.
    std::vector<int64_t> top_mass(double mass, double slack, double best, double temperature) const {
        const auto prob = [&](float logit) { return std::exp((static_cast<double>(logit) - best) / temperature); };
        double reached = 0.0;
        int64_t num_above = 0;
        float above = kInfinity;
        for (const double reach : kReaches) {
            const float bar = rounded_down(best - reach * temperature);
            std::vector<float> near = logits_of(between(bar, above));
            double after = reached;
            for (const float logit : near) after += prob(logit);
            if (after >= mass) {
                auto first = near.begin(), stop = near.end();
                while (stop - first > kFewToSort) {  // halve the part in which the mass is reached
                    const auto middle = first + (stop - first) / 2;
                    std::nth_element(first, middle, stop, std::greater<>());
                    double half = reached;
                    for (auto it = first; it < middle; ++it) half += prob(*it);
                    if (half >= mass) {
                        stop = middle;
                    } else {
                        reached = half;
                        first = middle;
                    }
                }
                std::sort(first, stop, std::greater<>());
                for (; first < stop; ++first) {
                    const bool was_clear = reached + slack < mass || slack == 0;
                    reached += prob(*first);
                    if (reached < mass) continue;
                    if (!was_clear || reached - slack < mass) return {};
                    return head(*first, num_above + (first - near.begin()) + 1);
                }
            }
            reached = after;
            num_above += static_cast<int64_t>(near.size());
            above = bar;
        }
        if (slack > 0) return {};
        return head(-kInfinity, count_);
    }

    std::vector<int64_t> likely(double share, double best, double temperature) const {
        // Slack for the logarithm, so that the comparison below alone decides.
        const double bar = best + temperature * (std::log(share) - 1e-6);
        std::vector<int64_t> columns = at_least(rounded_down(bar));
        std::erase_if(columns, [&](int64_t i) {
            return std::exp((static_cast<double>(logits_[i]) - best) / temperature) < share;
        });
        return columns;
    }

private:
    // A float at or below `x`: it may let one logit more in, never one less.
    static float rounded_down(double x) {
        if (x < std::numeric_limits<float>::lowest()) return -kInfinity;
        return std::nextafterf(static_cast<float>(x), -kInfinity);
    }

    const float* logits_;
    int64_t count_;
    std::vector<float> maxima_;
};

// What earlier filters have left of a row.
struct Remaining {
    const float* logits;
    int64_t count;
    bool is_cut = false;
    std::vector<float> numbers;      // of the columns, when it is cut
    std::vector<int64_t> columns;

    void keep(const std::vector<int64_t>& kept) {
        std::vector<float> fewer;
        std::vector<int64_t> own;
        for (const int64_t i : kept) {
            fewer.push_back(logits[i]);
            own.push_back(is_cut ? columns[i] : i);
        }
        numbers = std::move(fewer);
        columns = std::move(own);
        logits = numbers.data();
        count = static_cast<int64_t>(columns.size());
        is_cut = true;
    }
};

}  // namespace

std::vector<int64_t> surviving_columns(
    const float* logits, int64_t count, double best, const PickRule& rule, const Kernels& kernels) {
    Remaining left{logits, count, false, {}, {}};
    if (rule.top_k > 0 && rule.top_k < count) {
        left.keep(Ranking(logits, count, kernels).top(rule.top_k));
    }
    if (rule.top_p < 1) {
        const Ranking ranking(left.logits, left.count, kernels);
        const double about = sum_relative(left.logits, left.count, best, rule.temperature, kernels);
        std::vector<int64_t> kept =
            ranking.top_mass(rule.top_p * about, kSumError * about, best, rule.temperature);
        if (kept.empty()) {
            const double total = kernels.sum_relative_exactly(left.logits, left.count, best, rule.temperature);
            kept = ranking.top_mass(rule.top_p * total, 0.0, best, rule.temperature);
        }
        left.keep(kept);
    }
    if (rule.min_p > 0) {
        const Ranking ranking(left.logits, left.count, kernels);
        left.keep(ranking.likely(rule.min_p, best, rule.temperature));
    }
    return std::move(left.columns);
}

}  // namespace headlong
