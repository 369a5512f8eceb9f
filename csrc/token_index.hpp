// Where pairs of tokens of one sequence stood before, and how far the text before them is the same.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace headlong {

class TokenIndex {
public:
    struct Match { int64_t end, length; };

    int64_t num_tokens() const { return static_cast<int64_t>(tokens_.size()); }
    void push(int32_t token) { tokens_.push_back(token); }

    // The place before which most tokens are those that end the sequence, with `assumed` ones behind it; the latest
    // of equals, among the last few. Nothing where fewer than `min_length` are the same, or fewer than two.
    // Near the place the last copy would have come to, one equal token is enough, and matches count as a bit longer.
    std::optional<Match> find(int64_t min_length, const std::vector<int32_t>& assumed);

private:
    struct Copied { int64_t end, num_tokens; };  // the last match of a copy, and how many tokens there were then

    // A pair is known by where it ends: it is the tokens end - 2 and end - 1.
    void index_pair(int64_t end);
    size_t slot_of(int32_t first, int32_t second) const;
    void grow();

    std::vector<int32_t> tokens_;
    std::vector<int32_t> before_;      // by end: where the same pair ended before, 0 where it did not
    std::vector<int32_t> slots_ = std::vector<int32_t>(64);  // open addressing: where pairs ended last, 0 is empty
    std::optional<Copied> copied_;
    size_t num_pairs_ = 0;             // slots in use
};

}  // namespace headlong
