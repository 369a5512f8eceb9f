#include "token_index.hpp"

#include <algorithm>
#include <utility>

namespace headlong {

namespace {
constexpr int64_t kMaxMatch = 32;  // all as in ops/token_index.py, which defines the results
constexpr int kMaxPlaces = 16;
constexpr int64_t kCopyLength = 6;
constexpr int64_t kCopyBonus = 3;
constexpr int64_t kCopyReach = 16;
constexpr int64_t kCopyForgotten = 32;

// The tokens of a sequence and those assumed behind it, from the newest one back.
struct Tail {
    const std::vector<int32_t>& tokens;
    const std::vector<int32_t>& assumed;

    size_t size() const { return tokens.size() + assumed.size(); }
    int32_t operator[](size_t back) const {
        if (back < assumed.size()) return assumed[assumed.size() - 1 - back];
        return tokens[size() - 1 - back];
    }
    // How many tokens before `end` are the newest ones.
    int64_t match(int64_t end) const {
        const int64_t most = std::min(end, kMaxMatch);
        int64_t length = 0;
        while (length < most && tokens[end - 1 - length] == (*this)[length]) ++length;
        return length;
    }
    // The longest match around a place, the nearest of equals; of length 0 where there is none.
    TokenIndex::Match best_near(int64_t expected) const {
        TokenIndex::Match best{0, 0};
        for (int64_t distance = 0; distance <= kCopyReach; ++distance) {
            for (const int64_t end : {expected - distance, expected + distance}) {
                const int64_t length = 0 < end && end < int64_t(tokens.size()) ? match(end) : 0;
                if (length > best.length) best = {end, length};
            }
        }
        return best;
    }
};
}  // namespace

std::optional<TokenIndex::Match> TokenIndex::find(int64_t min_length, const std::vector<int32_t>& assumed) {
    // Up to the pair before the newest one, which must not match itself.
    for (int64_t end = std::max<int64_t>(before_.size(), 2); end < num_tokens(); ++end) index_pair(end);
    const Tail tail{tokens_, assumed};
    if (tail.size() < 2) return {};
    Match best{0, 0};
    int64_t end = slots_[slot_of(tail[1], tail[0])];
    for (int place = 0; end != 0 && place < kMaxPlaces && best.length < kMaxMatch; ++place, end = before_[end]) {
        const int64_t length = tail.match(end);
        if (length > best.length) best = {end, length};
    }
    int64_t num_equal = best.length;
    if (copied_ && int64_t(tail.size()) <= copied_->num_tokens + kCopyForgotten) {
        const Match resumed = tail.best_near(copied_->end + int64_t(tail.size()) - copied_->num_tokens);
        const int64_t counted = std::min(resumed.length + kCopyBonus, kMaxMatch);
        if (resumed.length > 0 && counted > best.length) {
            num_equal = resumed.length;
            best = {resumed.end, counted};
        }
    }
    if (num_equal >= kCopyLength && assumed.empty()) copied_ = Copied{best.end, num_tokens()};
    if (best.length < std::max<int64_t>(min_length, 2)) return {};
    return best;
}

void TokenIndex::index_pair(int64_t end) {
    int32_t& last = slots_[slot_of(tokens_[end - 2], tokens_[end - 1])];
    before_.resize(end + 1);
    before_[end] = last;
    const bool is_new = std::exchange(last, static_cast<int32_t>(end)) == 0;
    if (is_new && 2 * ++num_pairs_ > slots_.size()) grow();
}

// The slot of a pair, or the empty one where it belongs.
size_t TokenIndex::slot_of(int32_t first, int32_t second) const {
    const size_t mask = slots_.size() - 1;
    const uint64_t mixed = (uint64_t(uint32_t(first)) << 32 | uint32_t(second)) * 0x9E3779B97F4A7C15u;
    for (size_t slot = mixed >> 32 & mask;; slot = (slot + 1) & mask) {
        const int32_t end = slots_[slot];
        if (end == 0 || (tokens_[end - 2] == first && tokens_[end - 1] == second)) return slot;
    }
}

void TokenIndex::grow() {
    const std::vector<int32_t> old = std::exchange(slots_, std::vector<int32_t>(2 * slots_.size()));
    for (const int32_t end : old) {
        if (end != 0) slots_[slot_of(tokens_[end - 2], tokens_[end - 1])] = end;
    }
}

}  // namespace headlong
