// Which experts a row goes to. Compiled for every processor alike, so the choice does not depend on the kernels.
#include <algorithm>
#include <cmath>
#include <limits>

#include "experts.hpp"

namespace headlong {

namespace {

constexpr float kSmallestSum = 1e-20f;  // sigmoids may all be 0
constexpr float kTaken = -std::numeric_limits<float>::infinity();

void softmax(float* numbers, int64_t count) {
    const float largest = *std::max_element(numbers, numbers + count);
    float sum = 0.0f;
    for (int64_t i = 0; i < count; ++i) sum += numbers[i] = std::exp(numbers[i] - largest);
    for (int64_t i = 0; i < count; ++i) numbers[i] /= sum;
}

int64_t highest(const float* numbers, int64_t count) {
    return std::max_element(numbers, numbers + count) - numbers;  // of equal ones the first
}

float sum_of_best_two(const float* numbers, int64_t count) {
    float first = kTaken, second = kTaken;
    for (int64_t i = 0; i < count; ++i) {
        second = std::max(second, std::min(first, numbers[i]));
        first = std::max(first, numbers[i]);
    }
    return count > 1 ? first + second : first;
}

}  // namespace

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

void Router::choose(const float* logits, float* scores, float* heights, Choice* choices) const {
    const int64_t count = linear.outputs(), of_each = count / num_groups;
    std::copy(logits, logits + count, scores);
    if (is_sigmoid) {
        std::transform(scores, scores + count, scores, sigmoid);
    } else {
        softmax(scores, count);
    }
    for (int64_t i = 0; i < count; ++i) {
        const float height = choice_bias.empty() ? scores[i] : scores[i] + choice_bias[i];
        heights[i] = std::isnan(height) ? std::numeric_limits<float>::infinity() : height;
    }
    if (num_groups > 1) {
        for (int left = num_groups - num_chosen_groups; left > 0; --left) {  // drop the worst, of equal ones the last
            int64_t worst = -1;
            float lowest = 0.0f;
            for (int64_t group = 0; group < num_groups; ++group) {
                const float* own = heights + group * of_each;
                if (*own == kTaken) continue;
                const float height = sum_of_best_two(own, of_each);
                if (worst < 0 || height <= lowest) worst = group, lowest = height;
            }
            if (worst < 0) break;
            std::fill_n(heights + worst * of_each, of_each, kTaken);
        }
    }
    for (int i = 0; i < num_chosen; ++i) {
        const int64_t best = highest(heights, count);
        choices[i].expert = static_cast<int32_t>(best);
        heights[best] = kTaken;
    }
    std::sort(choices, choices + num_chosen, [](Choice a, Choice b) { return a.expert < b.expert; });
    float sum = kSmallestSum;
    for (int i = 0; i < num_chosen; ++i) sum += choices[i].share = scores[choices[i].expert];
    for (int i = 0; i < num_chosen; ++i) {
        if (is_renormalised) choices[i].share /= sum;
        if (!scales.empty()) choices[i].share *= scales[choices[i].expert];
    }
}

}  // namespace headlong
