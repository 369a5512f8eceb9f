// One small team of threads that runs a function together, with a barrier inside it.
//
// Waiting spins for a moment, then offers its core to others, then naps: a barrier that only spins
// collapses when another process takes one of the cores, because the spinner then burns the time its
// mate needs. When mates starve all the same, the caller works alone for a while.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

namespace headlong {

class Pool;

// What one thread of the team sees while a function runs.
class Member {
public:
    Member(Pool& pool, int index, int count) : index(index), count(count), pool_(pool) {}

    const int index;
    const int count;

    void barrier();  // returns when all members have called it

    // This member's share of `total` equal pieces of work, as a half-open range.
    struct Range { int64_t first, stop; };
    Range share(int64_t total) const { return share_of(index, total); }
    Range share_of(int member, int64_t total) const { return {total * member / count, total * (member + 1) / count}; }

private:
    Pool& pool_;
    std::chrono::steady_clock::duration waited_{};  // for mates, in this run
};

class Pool {
public:
    explicit Pool(int num_threads);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int num_threads() const { return num_threads_; }

    // How long one of two members waits at a barrier that both come to at once, as seen a moment ago: 30 to 100 ns on
    // one die, 200 and more on two. 0 before the first look, and in other teams than pairs.
    double distance_ns() const { return distance_ns_; }
    // Whether members should rather send each other copies than share what they write. A virtual machine's cores
    // wander between dies within seconds, so it is looked at all the time; tests say it themselves.
    bool is_far_apart() const { return said_far_.value_or(distance_ns_ > kFarNs); }
    void say_far_apart(bool is_far) { said_far_ = is_far; }

    // Run `work` on all members at once, the caller being member 0. Only one run at a time: callers
    // hold the pool's mutex. `work` must not throw.
    void run(const std::function<void(Member&)>& work);

    // Serialises everything that uses the pool; a fork waits for it.
    std::mutex mutex;

private:
    friend class Member;
    struct Team;
    static constexpr double kFarNs = 140;

    void start();
    void run_team(const std::function<void(Member&)>& work);
    void look_how_far();
    void forget_team();  // in a child after fork, where the threads do not exist
    static void register_fork_handlers();

    int num_threads_;
    Team* team_ = nullptr;  // made at the first run
    std::atomic<double> distance_ns_{0.0};
    std::optional<bool> said_far_;
};

}  // namespace headlong
