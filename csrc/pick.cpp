#include "pick.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace headlong {

namespace {

constexpr int64_t kBlock = 1024;  // tokens hashed at once; their words stay in the first cache
constexpr double kNear = 8.0;  // tokens this close to the best, in units of temperature, go first
constexpr double kCertain = 2.0;  // tokens so close are added up before anything is ruled out

constexpr double kCold = 1e-3;  // below, 32 bits do not hold logits divided by the temperature

double gumbel(uint64_t bits) {
    const double uniform = (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
    return -std::log(-std::log(uniform));
}

// Bits that every token with at least this much noise reaches; as in ops/noise.py.
uint64_t bits_reaching(double noise) {
    if (noise <= -std::log(53.0 * std::log(2.0))) return 0;
    const double tail = -std::expm1(-std::exp(-(noise - 1e-3)));
    const double steps = std::min(std::ceil(tail * 0x1p52) + 1.0, 0x1p52);
    return ((uint64_t{1} << 52) - static_cast<uint64_t>(steps)) << 12;
}

uint64_t bits_of(uint64_t key, int64_t token_id, const Kernels& kernels) {
    uint64_t bits = 0;
    kernels.noise_bits(key, nullptr, token_id, 1, &bits);
    return bits;
}

// The leader so far, and the noise its followers would need.
struct Leader {
    Winner winner;
    Needed needed;

    void take(int64_t column, double score) {
        const Winner next{column, score};
        if (!next.beats(winner)) return;
        winner = next;
        // No scaled logit is above 0: a near token needs at least the leader's score in noise, any
        // other kNear more.
        needed.bits_near = bits_reaching(score);
        needed.bits_far = bits_reaching(score + kNear);
    }
};

}  // namespace

uint64_t noise_key(uint64_t seed, int64_t position, const Kernels& kernels) {
    return bits_of(bits_of(seed, 0, kernels), position, kernels);  // hashed like tokens, seed first
}

Winner run_race(const Race& race, const Kernels& kernels) {
    uint64_t bits[kBlock];
    const auto hash = [&](int64_t first, int64_t count) {
        const int64_t start = race.token_ids == nullptr ? race.first_column + first : first;
        kernels.noise_bits(race.key, race.token_ids, start, count, bits);
    };
    const auto score = [&](int64_t i, uint64_t own_bits) {
        return (static_cast<double>(race.logits[i]) - race.best) / race.temperature + gumbel(own_bits);
    };
    // Rounded to float, `near` may call a near token far by a hair; the slack of bits_reaching, a
    // thousandth, is far more than that.
    Leader leader{{}, {static_cast<float>(race.best - kNear * race.temperature), 0, 0}};
    if (race.leader.column >= 0) leader.take(race.leader.column, race.leader.score);
    float maxima[kBlock / kMaxBlock];
    const auto certain = static_cast<float>(race.best - kCertain * race.temperature);
    for (int64_t first = 0; first < race.count; first += kBlock) {
        const int64_t count = std::min(kBlock, race.count - first);
        kernels.block_maxima(race.logits + first, count, maxima);
        for (int64_t i = 0; i < count; ++i) {
            if (maxima[i / kMaxBlock] < certain) {
                i += kMaxBlock - 1;  // blocks start at multiples of their size
                continue;
            }
            if (race.logits[first + i] < certain) continue;
            hash(first + i, 1);
            leader.take(race.first_column + first + i, score(first + i, bits[0]));
        }
    }
    for (int64_t first = 0; first < race.count; first += kBlock) {
        const int64_t count = std::min(kBlock, race.count - first);
        hash(first, count);
        for (int64_t i = 0; i < count; ++i) {
            const float* logits = race.logits + first;
            if (i % kMaxBlock == 0 && i + kMaxBlock <= count && !kernels.any_reaches(logits + i, bits + i, leader.needed)) {
                i += kMaxBlock - 1;
                continue;
            }
            const bool is_near = logits[i] >= leader.needed.near;
            const uint64_t needed = is_near ? leader.needed.bits_near : leader.needed.bits_far;
            if (bits[i] >= needed) leader.take(race.first_column + first + i, score(first + i, bits[i]));
        }
    }
    return leader.winner;
}

Winner enter_best(uint64_t key, int64_t token_id, int64_t column, const Kernels& kernels) {
    return {column, gumbel(bits_of(key, token_id, kernels))};
}

Survivors survivors_of(
    const float* logits, int64_t count, const int64_t* vocabulary, double best, const PickRule& rule,
    const Kernels& kernels) {
    Survivors found{surviving_columns(logits, count, best, rule, kernels), {}, {}};
    for (const int64_t column : found.columns) {
        found.logits.push_back(logits[column]);
        found.token_ids.push_back(vocabulary == nullptr ? column : vocabulary[column]);
    }
    return found;
}

int64_t race_among(const Survivors& survivors, double best, double temperature, uint64_t key, const Kernels& kernels) {
    const auto count = static_cast<int64_t>(survivors.columns.size());
    const Race race{survivors.logits.data(), survivors.token_ids.data(), count, best, temperature, key};
    return survivors.columns[std::max<int64_t>(run_race(race, kernels).column, 0)];
}

int64_t pick_token(const float* logits, int64_t count, const PickRule& rule, int64_t position, const Kernels& kernels) {
    const int64_t likeliest = kernels.argmax(logits, count);
    const double best = logits[likeliest];
    if (!std::isfinite(best)) return -1;
    if (rule.temperature == 0) return likeliest;
    const uint64_t key = noise_key(rule.seed, position, kernels);
    if (rule.has_filters(count)) {
        return race_among(survivors_of(logits, count, nullptr, best, rule, kernels), best, rule.temperature, key, kernels);
    }
    const Winner leader = enter_best(key, likeliest, likeliest, kernels);
    return run_race({logits, nullptr, count, best, rule.temperature, key, 0, leader}, kernels).column;
}

double sum_of_chunk(
    const float* logits, int64_t count, double best, double temperature, const Kernels& kernels) {
    if (temperature < kCold) return kernels.sum_relative_exactly(logits, count, best, temperature);
    return kernels.sum_relative(logits, count, static_cast<float>(best), static_cast<float>(temperature));
}

double sum_relative(
    const float* logits, int64_t count, double best, double temperature, const Kernels& kernels) {
    double sum = 0.0;
    for (int64_t first = 0; first < count; first += kSumChunk) {
        sum += sum_of_chunk(logits + first, std::min(kSumChunk, count - first), best, temperature, kernels);
    }
    return sum;
}

}  // namespace headlong
