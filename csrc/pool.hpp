// A small team of threads that runs one function together, with a barrier inside it.
//
// A waiting worker first spins, then yields its core, then sleeps. Spinning alone fails when another process takes a
// core: the spinning worker then uses up the time that the other worker needs. Where the team is slower than its caller
// alone all the same, the caller works alone for a while.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "team_choice.hpp"

namespace headlong {

class Pool;

// A half-open range of indices.
struct Range { int64_t first, stop; };

// One thread of the team while a function runs.
class Worker {
public:
    Worker(Pool& pool, int index, int count) : index(index), count(count), pool_(pool) {}

    const int index;
    const int count;

    // Returns when all workers have called it. They then see all that each stored before, past the caches or not.
    void barrier();

    // Do the function's work and wait for the others, who then know how much useful time it took.
    void take_part(const std::function<void(Worker&)>& function);

    // This worker's share of `total` equal pieces of work.
    Range share(int64_t total) const { return share_of(index, total); }
    Range share_of(int worker, int64_t total) const { return {total * worker / count, total * (worker + 1) / count}; }

private:
    Pool& pool_;
    double waited_s_ = 0.0;  // processor time spent at barriers in this run
};

class Pool {
public:
    explicit Pool(int num_threads);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int num_threads() const { return num_threads_; }
    // How many make the next run: all, or the caller alone. Tests can force it.
    int num_threads_in_use() const { return forced_alone_.value_or(choice_.is_alone()) ? 1 : num_threads_; }
    void set_alone(bool is_alone) { forced_alone_ = is_alone; }

    // How long one of two workers waits at a barrier that both reach at once: 30 to 100 ns on one die, 200 and more on
    // two. 0 before the first measurement, and in teams of any other size.
    double distance_ns() const { return distance_ns_; }
    // Whether the cores of the two workers are on different dies. A virtual machine's cores move between dies within
    // seconds, so this is measured again and again. Tests can force it.
    bool is_far_apart() const { return forced_far_.value_or(distance_ns_ > kFarNs); }
    void set_far_apart(bool is_far) { forced_far_ = is_far; }

    // Run `work` on all workers at once. The caller is worker 0. Only one run at a time: callers hold the pool's mutex.
    // `work` must not throw.
    void run(const std::function<void(Worker&)>& work);

    // Serialises everything that uses the pool; a fork waits for it.
    std::mutex mutex;

private:
    friend class Worker;
    struct Team;
    static constexpr double kFarNs = 140;

    using Clock = std::chrono::steady_clock;

    void start();
    void gather(Clock::time_point now);  // put the team where it runs best
    void run_team(const std::function<void(Worker&)>& work);
    void measure_distance();
    void forget_team();  // in a child after fork, where the threads do not exist
    static void register_fork_handlers();

    int num_threads_;
    Team* team_ = nullptr;  // made at the first run
    std::atomic<double> distance_ns_{0.0};
    std::optional<bool> forced_far_;
    TeamChoice choice_;
    std::optional<bool> forced_alone_;
};

}  // namespace headlong
