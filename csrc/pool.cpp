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

// How long to look before giving up: so often with all our time, then offering the core now and then,
// `looks` times in all. Who has waited longer than work differs between members waits for somebody without a
// core; to offer ours costs next to nothing when nobody wants it, and helps most when that one does.
struct Patience { int spins, looks, looks_per_yield; };

// Sleeping at a barrier is dear when another process wants the core: the kernel lets that one run for
// milliseconds first. So members look for about two of them, after 50 microseconds offering their core. With
// more members than cores, the one that is waited for may need this very core.
constexpr Patience kAtBarrier{4000, 160000, 64};
constexpr Patience kBetweenRuns{4000, 40000, 64};  // about half a millisecond, a decode's time between passes
constexpr Patience kWhenCrowded{50, 2000, 1};
constexpr std::chrono::microseconds kNap{50};      // at a barrier, once patience is over

// A team whose members wait for each other most of the time is slower than the caller alone, who then
// does all the work for a while, and for twice as long whenever that happens anew.
constexpr std::chrono::milliseconds kFirstSolo{100};
constexpr std::chrono::milliseconds kMostSolo{1600};
constexpr std::chrono::milliseconds kTimeToForget{1000};

// Looking how far members are apart takes some four microseconds. The shortest of a few looks counts: another
// process may take a core in any of them.
constexpr std::chrono::milliseconds kTimeBetweenLooks{20};
constexpr int kLooks = 4, kBarriersPerLook = 4;

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

// Look at `word` while it is `seen` and patience lasts; return for how long, nothing where it changed soon.
Clock::duration look_while(const std::atomic<uint32_t>& word, uint32_t seen, const Patience& patience) {
    for (int i = 0; i < patience.spins; ++i) {
        if (word.load(std::memory_order_acquire) != seen) return {};
        relax();
    }
    const Clock::time_point began = Clock::now();
    for (int i = patience.spins; i < patience.looks && word.load(std::memory_order_acquire) == seen; ++i) {
        if (i % patience.looks_per_yield != 0) relax();
        else std::this_thread::yield();
    }
    return Clock::now() - began;
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

// How many barriers a member has come to, and how long it waited there in this run. Each has a line of its own,
// which it alone writes: a counter for all would travel from core to core three times a barrier, and between two
// dies of a server each way takes a quarter of a microsecond. Lines side by side are fetched together, so none are.
struct alignas(256) Arrivals {
    std::atomic<uint32_t> count{0};
    std::atomic<Clock::rep> waited{0};
};

struct alignas(64) Pool::Team {
    explicit Team(int num_threads) : arrivals(num_threads) {}

    alignas(64) std::atomic<uint32_t> run_count{0};
    std::atomic<int> run_sleepers{0};
    std::vector<Arrivals> arrivals;
    const std::function<void(Member&)>* work = nullptr;  // null asks the threads to leave
    std::vector<std::thread> threads;
    int caller_core = -1;  // which the threads are kept off
    bool is_crowded = false;

    uint32_t recent = 0;  // one bit per run, the newest lowest: was it starved?
    Clock::time_point last_starved{};
    Clock::time_point solo_until{};
    Clock::duration next_solo = kFirstSolo;
    Clock::time_point last_look{};

    const Patience& patience(const Patience& usual) const { return is_crowded ? kWhenCrowded : usual; }

    // Let the threads begin a run, or leave.
    void call(const std::function<void(Member&)>* function) {
        work = function;
        run_count.fetch_add(1);
        if (run_sleepers.load() > 0) run_count.notify_all();
    }

    // Wait for the run after `seen`.
    uint32_t await_run(uint32_t seen) {
        look_while(run_count, seen, patience(kBetweenRuns));
        if (run_count.load(std::memory_order_acquire) == seen) {
            run_sleepers.fetch_add(1);
            run_count.wait(seen);
            run_sleepers.fetch_sub(1);
        }
        return run_count.load(std::memory_order_acquire);
    }

    // Learn from a finished run whether the next ones are better made by the caller alone: without the
    // waiting it was work for `count` members, all of which one would have to do.
    void settle_run(Clock::time_point began, int count) {
        const Clock::time_point now = Clock::now();
        const Clock::duration took = now - began;
        Clock::rep most_waited = 0;
        for (const Arrivals& member : arrivals) most_waited = std::max(most_waited, member.waited.load());
        const bool starved = count * (took.count() - most_waited) < took.count();
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
    Arrivals& own = team.arrivals[index];
    const uint32_t before = own.count.load(std::memory_order_relaxed);
    own.waited.store(waited_.count(), std::memory_order_relaxed);
    own.count.store(before + 1, std::memory_order_release);
    for (int other = 0; other < count; ++other) {
        if (other == index) continue;
        // A mate may be one barrier further by now, never two.
        const std::atomic<uint32_t>& theirs = team.arrivals[other].count;
        waited_ += look_while(theirs, before, team.patience(kAtBarrier));
        while (theirs.load(std::memory_order_acquire) == before) {
            std::this_thread::sleep_for(kNap);
            waited_ += kNap;
        }
    }
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
    team_->call(nullptr);
    for (std::thread& thread : team_->threads) thread.join();
    delete team_;
}

void Pool::start() {
    team_ = new Team(num_threads_);
    team_->is_crowded = num_threads_ > num_cores();
    for (int index = 1; index < num_threads_; ++index) {
        team_->threads.emplace_back([this, index, team = team_] {
            uint32_t seen = 0;
            while (true) {
                seen = team->await_run(seen);
                if (team->work == nullptr) return;
                Member member(*this, index, num_threads_);
                (*team->work)(member);
                member.barrier();
            }
        });
    }
}

void Pool::run(const std::function<void(Member&)>& work) {
    if (num_threads_ > 1 && team_ == nullptr) start();
    const Clock::time_point began = Clock::now();
    if (num_threads_ == 1 || began < team_->solo_until) {  // results do not depend on the number of members
        Member alone(*this, 0, 1);
        work(alone);
        return;
    }
    const int core = current_core();
    if (core != team_->caller_core && !team_->is_crowded) {
        team_->caller_core = core;
        for (std::thread& thread : team_->threads) keep_off(thread, core);
    }
    if (num_threads_ == 2 && !team_->is_crowded && began - team_->last_look > kTimeBetweenLooks) look_how_far();
    run_team(work);
    team_->settle_run(began, num_threads_);
}

void Pool::run_team(const std::function<void(Member&)>& work) {
    Member member(*this, 0, num_threads_);
    team_->call(&work);
    work(member);
    member.barrier();  // `work` lives in the caller's frame; nobody may still be in it
}

void Pool::look_how_far() {
    Clock::duration shortest = Clock::duration::max();
    run_team([&](Member& me) {
        for (int look = 0; look < kLooks; ++look) {
            me.barrier();
            const Clock::time_point began = Clock::now();
            for (int i = 0; i < kBarriersPerLook; ++i) me.barrier();
            if (me.index == 0) shortest = std::min(shortest, Clock::now() - began);
        }
    });
    distance_ns_ = std::chrono::duration<double, std::nano>(shortest).count() / kBarriersPerLook;
    team_->last_look = Clock::now();
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
