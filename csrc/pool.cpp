#include "pool.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <thread>
#include <vector>

#include <pthread.h>
#ifdef __linux__
#include <sched.h>
#endif

namespace headlong {

namespace {

// Sleeping at a barrier is dear when another process wants the core: the kernel lets that one run
// for milliseconds first. So members spin for about two of them, unless there are more members than
// cores, when the one that is waited for may need this very core.
constexpr int kSpinsAtBarrier = 160000;
constexpr int kSpinsBetweenRuns = 40000;  // about half a millisecond, a decode's time between passes
constexpr int kSpinsWhenCrowded = 50;

// Who has waited longer than work differs between members waits for somebody without a core. To
// offer ours now and then costs next to nothing when nobody wants it, and helps most when it is the
// one that is waited for.
constexpr int kSpinsBeforeYield = 4000;  // about 50 microseconds
constexpr int kSpinsPerYield = 64;

// A team whose members wait for each other most of the time is slower than the caller alone, who then
// does all the work for a while, and for twice as long whenever that happens anew.
constexpr std::chrono::milliseconds kFirstSolo{100};
constexpr std::chrono::milliseconds kMostSolo{1600};
constexpr std::chrono::milliseconds kTimeToForget{1000};

int num_cores() {
#ifdef __linux__
    cpu_set_t cores;
    if (sched_getaffinity(0, sizeof cores, &cores) == 0) return CPU_COUNT(&cores);
#endif
    return static_cast<int>(std::thread::hardware_concurrency());
}

// Keep a worker off the core its caller runs on. When all cores are busy the kernel likes to wake a
// thread where its waker is, and then one of the two would spin in the other's way.
void keep_off(std::thread& thread, int core) {
#ifdef __linux__
    cpu_set_t cores;
    if (sched_getaffinity(0, sizeof cores, &cores) != 0 || CPU_COUNT(&cores) < 2) return;
    CPU_CLR(core, &cores);
    pthread_setaffinity_np(thread.native_handle(), sizeof cores, &cores);
#endif
}

int current_core() {
#ifdef __linux__
    return sched_getcpu();
#else
    return 0;
#endif
}

void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

using Clock = std::chrono::steady_clock;

struct Change {
    uint32_t value;
    Clock::duration waited;  // nothing where it came at once
};

// Wait until `word` is no longer `seen`.
Change await_change(std::atomic<uint32_t>& word, std::atomic<int>& num_sleepers, uint32_t seen, int num_spins) {
    for (int i = 0; i < std::min(num_spins, kSpinsBeforeYield); ++i) {
        const uint32_t now = word.load(std::memory_order_acquire);
        if (now != seen) return {now, {}};
        relax();
    }
    const Clock::time_point began = Clock::now();
    for (int i = kSpinsBeforeYield; i < num_spins; ++i) {
        const uint32_t now = word.load(std::memory_order_acquire);
        if (now != seen) return {now, Clock::now() - began};
        if (i % kSpinsPerYield != 0) relax();
        else std::this_thread::yield();
    }
    num_sleepers.fetch_add(1);
    word.wait(seen);
    num_sleepers.fetch_sub(1);
    return {word.load(std::memory_order_acquire), Clock::now() - began};
}

void change(std::atomic<uint32_t>& word, std::atomic<int>& num_sleepers) {
    word.fetch_add(1);
    if (num_sleepers.load() > 0) word.notify_all();
}

// Every living pool, for the fork handlers. Never destroyed: a fork may come at any time.
struct Registry {
    std::mutex mutex;
    std::vector<Pool*> pools;
};

Registry& registry() {
    static auto* instance = new Registry;
    return *instance;
}

}  // namespace

struct alignas(64) Pool::Team {
    alignas(64) std::atomic<uint32_t> run_count{0};
    std::atomic<int> run_sleepers{0};
    alignas(64) std::atomic<uint32_t> num_arrived{0};
    alignas(64) std::atomic<uint32_t> phase{0};
    std::atomic<int> phase_sleepers{0};
    const std::function<void(Member&)>* work = nullptr;  // null asks the threads to leave
    std::vector<std::thread> threads;
    int caller_core = -1;  // which the threads are kept off
    bool is_crowded = false;

    std::atomic<Clock::rep> most_waited{0};  // by one member in this run
    uint32_t recent = 0;                     // one bit per run, the newest lowest: was it starved?
    Clock::time_point last_starved{};
    Clock::time_point solo_until{};
    Clock::duration next_solo = kFirstSolo;

    int spins(int usual) const { return is_crowded ? kSpinsWhenCrowded : usual; }

    void note_wait(Clock::duration waited_so_far) {
        Clock::rep most = most_waited.load(std::memory_order_relaxed);
        while (most < waited_so_far.count() && !most_waited.compare_exchange_weak(most, waited_so_far.count())) {
        }
    }

    // Learn from a finished run whether the next ones are better made by the caller alone: without the
    // waiting it was work for `count` members, all of which one would have to do.
    void settle_run(Clock::time_point began, int count) {
        const Clock::time_point now = Clock::now();
        const Clock::duration took = now - began, worked = took - Clock::duration(most_waited.load());
        const bool starved = count * worked < took;
        if (now - last_starved > kTimeToForget) next_solo = kFirstSolo;
        if (starved) last_starved = now;
        recent = (recent << 1 | uint32_t(starved)) & 0xF;
        if (std::popcount(recent) < 2) return;  // one alone is a passing neighbour
        solo_until = now + next_solo;
        next_solo = std::min<Clock::duration>(2 * next_solo, kMostSolo);
        recent = 0;
    }
};

void Member::barrier() {
    if (count == 1) return;
    Pool::Team& team = *pool_.team_;
    const uint32_t phase = team.phase.load(std::memory_order_relaxed);
    if (team.num_arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == uint32_t(count)) {
        team.num_arrived.store(0, std::memory_order_relaxed);
        change(team.phase, team.phase_sleepers);
        return;
    }
    const Clock::duration waited =
        await_change(team.phase, team.phase_sleepers, phase, team.spins(kSpinsAtBarrier)).waited;
    if (waited == Clock::duration::zero()) return;
    waited_ += waited;
    team.note_wait(waited_);
}

Pool::Pool(int num_threads) : num_threads_(std::max(1, num_threads)) {
    register_fork_handlers();
    const std::lock_guard lock(registry().mutex);
    registry().pools.push_back(this);
}

Pool::~Pool() {
    {
        const std::lock_guard lock(registry().mutex);
        std::erase(registry().pools, this);
    }
    if (team_ == nullptr) return;
    team_->work = nullptr;
    change(team_->run_count, team_->run_sleepers);
    for (std::thread& thread : team_->threads) thread.join();
    delete team_;
}

void Pool::start() {
    team_ = new Team;
    team_->is_crowded = num_threads_ > num_cores();
    for (int index = 1; index < num_threads_; ++index) {
        team_->threads.emplace_back([this, index, team = team_] {
            uint32_t seen = 0;
            while (true) {
                seen = await_change(team->run_count, team->run_sleepers, seen, team->spins(kSpinsBetweenRuns)).value;
                if (team->work == nullptr) return;
                Member member(*this, index, num_threads_);
                (*team->work)(member);
                member.barrier();
            }
        });
    }
}

void Pool::run(const std::function<void(Member&)>& work) {
    Member member(*this, 0, num_threads_);
    if (num_threads_ == 1) {
        work(member);
        return;
    }
    if (team_ == nullptr) start();
    const Clock::time_point began = Clock::now();
    if (began < team_->solo_until) {  // results do not depend on the number of members
        Member alone(*this, 0, 1);
        work(alone);
        return;
    }
    const int core = current_core();
    if (core != team_->caller_core && !team_->is_crowded) {
        team_->caller_core = core;
        for (std::thread& thread : team_->threads) keep_off(thread, core);
    }
    team_->most_waited.store(0, std::memory_order_relaxed);
    team_->work = &work;
    change(team_->run_count, team_->run_sleepers);
    work(member);
    member.barrier();  // `work` lives in the caller's frame; nobody may still be in it
    team_->settle_run(began, num_threads_);
}

void Pool::forget_team() {
    // The threads stayed in the parent. Their handles cannot be joined here, so they are leaked.
    team_ = nullptr;
}

void Pool::register_fork_handlers() {
    static std::once_flag once;
    std::call_once(once, [] {
        pthread_atfork(
            [] {
                registry().mutex.lock();
                for (Pool* pool : registry().pools) pool->mutex.lock();
            },
            [] {
                for (Pool* pool : registry().pools) pool->mutex.unlock();
                registry().mutex.unlock();
            },
            [] {
                for (Pool* pool : registry().pools) {
                    pool->forget_team();
                    pool->mutex.unlock();
                }
                registry().mutex.unlock();
            });
    });
}

}  // namespace headlong
