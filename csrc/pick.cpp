#include "pick.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace headlong {

namespace {

constexpr int64_t kBlock = 1024;  // tokens hashed at once; their words stay in the first cache
constexpr double kNear = 8.0;  // tokens this close to the best, in units of temperature, go first
constexpr double kCertain = 2.0;  // tokens so close are added up before anything is ruled out

double gumbel(uint64_t bits) {
    const double uniform = (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
    return -std::log(-std::log(uniform));
}

// Bits that every token with at least this much noise reaches; as in decode/noise.py.
uint64_t bits_reaching(double noise) {
    if (noise <= -std::log(53.0 * std::log(2.0))) return 0;
    const double tail = -std::expm1(-std::exp(-(noise - 1e-3)));
    const double steps = std::min(std::ceil(tail * 0x1p52) + 1.0, 0x1p52);
    return ((uint64_t{1} << 52) - static_cast<uint64_t>(steps)) << 12;
}

// The leader so far, and the noise its followers would need.
struct Leader {
    int64_t column = -1;
    double score = -std::numeric_limits<double>::infinity();
    uint64_t needed_near = 0, needed_far = 0;

    void take(int64_t at, double with) {
        if (with < score || (with == score && column >= 0 && at > column)) return;
        column = at;
        score = with;
        // No scaled logit is above 0: a near token needs at least the leader's score in noise, any
        // other kNear more.
        needed_near = bits_reaching(score);
        needed_far = bits_reaching(score + kNear);
    }
};

}  // namespace

int64_t run_race(const Race& race, const Kernels& kernels) {
    uint64_t bits[kBlock];
    const auto score = [&](int64_t column, uint64_t own_bits) {
        return (static_cast<double>(race.logits[column]) - race.best) / race.temperature + gumbel(own_bits);
    };
    Leader leader;
    const auto certain = static_cast<float>(race.best - kCertain * race.temperature);
    for (int64_t i = 0; i < race.count; ++i) {
        if (race.logits[i] < certain) continue;
        kernels.noise_bits(race.key, race.token_ids, i, 1, bits);
        leader.take(i, score(i, bits[0]));
    }
    // Rounded to float, `near` may call a near token far by a hair; the slack of bits_reaching, a
    // thousandth, is far more than that.
    const auto near = static_cast<float>(race.best - kNear * race.temperature);
    for (int64_t first = 0; first < race.count; first += kBlock) {
        const int64_t count = std::min(kBlock, race.count - first);
        kernels.noise_bits(race.key, race.token_ids, first, count, bits);
        for (int64_t i = 0; i < count; ++i) {
            const bool is_near = race.logits[first + i] >= near;
            const uint64_t needed = is_near ? leader.needed_near : leader.needed_far;
            if (bits[i] >= needed) leader.take(first + i, score(first + i, bits[i]));
        }
    }
    return std::max<int64_t>(leader.column, 0);
}

}  // namespace headlong
