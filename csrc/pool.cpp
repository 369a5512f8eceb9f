#include "pool.hpp"

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include <pthread.h>
#include <time.h>
#ifdef __linux__
#include <sched.h>
#endif

#include "team_choice.hpp"

namespace headlong {

namespace {

// How long to poll before sleeping: `spins` times without a pause, then yielding the core every `polls_per_yield`
// polls, `polls` times in all. A worker that waits longer than shares of work differ waits for one without a core.
// Yielding costs almost nothing when no other thread wants the core, and helps most when that worker does.
struct PollLimits { int spins, polls, polls_per_yield; };

// Sleeping at a barrier is expensive when another process wants the core: the kernel lets it run for milliseconds
// first. So workers poll for about two milliseconds, and yield after 50 microseconds. With more workers than cores,
// the missing worker may need this very core.
constexpr PollLimits kAtBarrier{4000, 160000, 64};
constexpr PollLimits kBetweenRuns{4000, 40000, 64};  // about half a millisecond, a decode's time between passes
constexpr PollLimits kWhenCrowded{50, 2000, 1};
constexpr std::chrono::microseconds kNap{50};        // at a barrier, after the last poll

// Measuring the distance takes some four microseconds. The shortest of a few samples counts, because another process
// may take a core during any of them.
constexpr std::chrono::milliseconds kTimeBetweenMeasurements{20};
constexpr int kSamples = 4, kBarriersPerSample = 4;

int num_cores() {
#ifdef __linux__
    cpu_set_t cores;
    if (sched_getaffinity(0, sizeof cores, &cores) == 0) return CPU_COUNT(&cores);
#endif
    return static_cast<int>(std::thread::hardware_concurrency());
}

// Keep a worker off the core its caller runs on. When all cores are busy, the kernel tends to wake a thread on the core
// of its waker, and then one of the two would spin while the other waits.
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

// Make stores past the caches visible before whatever is stored next. Ordinary stores need no help.
void order_stores() {
#if defined(__SSE2__)
    __builtin_ia32_sfence();
#endif
}

using Clock = std::chrono::steady_clock;

double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

// How long this thread has had a core so far.
double processor_s() {
    timespec used{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

// Poll `word` while it is `seen`, `limits.spins` times at most; tell whether it changed.
bool spin_while(const std::atomic<uint32_t>& word, uint32_t seen, const PollLimits& limits) {
    for (int i = 0; i < limits.spins; ++i) {
        if (word.load(std::memory_order_acquire) != seen) return true;
        relax();
    }
    return false;
}

// Poll on, and yield the core now and then, up to the limits.
void poll_while(const std::atomic<uint32_t>& word, uint32_t seen, const PollLimits& limits) {
    for (int i = limits.spins; i < limits.polls && word.load(std::memory_order_acquire) == seen; ++i) {
        if (i % limits.polls_per_yield != 0) relax();
        else std::this_thread::yield();
    }
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

// How many barriers a worker has reached, and how much useful time it made in this run. Only that worker writes it, in a
// cache line of its own: one counter for all would move between cores three times per barrier, and each move between
// two dies takes a quarter of a microsecond. Adjacent lines are fetched together, so these are kept apart.
struct alignas(256) Arrivals {
    std::atomic<uint32_t> count{0};
    std::atomic<double> useful_s{0.0};
};

struct alignas(64) Pool::Team {
    explicit Team(int num_threads) : arrivals(num_threads) {}

    alignas(64) std::atomic<uint32_t> run_count{0};
    std::atomic<int> run_sleepers{0};
    std::vector<Arrivals> arrivals;
    const std::function<void(Worker&)>* work = nullptr;  // null asks the threads to leave
    std::vector<std::thread> threads;
    int caller_core = -1;  // which the threads are kept off
    bool is_crowded = false;

    Clock::time_point last_measured{};

    const PollLimits& limits(const PollLimits& usual) const { return is_crowded ? kWhenCrowded : usual; }

    // Let the threads begin a run, or leave.
    void call(const std::function<void(Worker&)>* function) {
        work = function;
        run_count.fetch_add(1);
        if (run_sleepers.load() > 0) run_count.notify_all();
    }

    // Wait for the run after `seen`.
    uint32_t await_run(uint32_t seen) {
        if (!spin_while(run_count, seen, limits(kBetweenRuns))) poll_while(run_count, seen, limits(kBetweenRuns));
        if (run_count.load(std::memory_order_acquire) == seen) {
            run_sleepers.fetch_add(1);
            run_count.wait(seen);
            run_sleepers.fetch_sub(1);
        }
        return run_count.load(std::memory_order_acquire);
    }

    // Useful time that so many workers made in the last run.
    double useful_s(int count) const {
        double sum = 0.0;
        for (int i = 0; i < count; ++i) sum += arrivals[i].useful_s.load(std::memory_order_relaxed);
        return sum;
    }
};

void Worker::barrier() {
    if (count == 1) return;
    Pool::Team& team = *pool_.team_;
    Arrivals& own = team.arrivals[index];
    const uint32_t before = own.count.load(std::memory_order_relaxed);
    order_stores();
    own.count.store(before + 1, std::memory_order_release);
    for (int other = 0; other < count; ++other) {
        if (other == index) continue;
        // Another worker may be one barrier ahead by now, never two.
        const std::atomic<uint32_t>& theirs = team.arrivals[other].count;
        if (spin_while(theirs, before, team.limits(kAtBarrier))) continue;
        const double began_s = processor_s();
        poll_while(theirs, before, team.limits(kAtBarrier));
        while (theirs.load(std::memory_order_acquire) == before) std::this_thread::sleep_for(kNap);
        waited_s_ += processor_s() - began_s;
    }
}

void Worker::take_part(const std::function<void(Worker&)>& function) {
    const double began_s = processor_s();
    function(*this);
    const double useful_s = processor_s() - began_s - waited_s_;
    pool_.team_->arrivals[index].useful_s.store(useful_s, std::memory_order_relaxed);
    barrier();  // publishes it, too
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
                Worker worker(*this, index, num_threads_);
                worker.take_part(*team->work);
            }
        });
    }
}

void Pool::run(const std::function<void(Worker&)>& work) {
    if (num_threads_ > 1 && team_ == nullptr) start();
    if (num_threads_ == 1) {
        Worker alone(*this, 0, 1);
        work(alone);
        return;
    }
    const Clock::time_point began = Clock::now();
    const int count = num_threads_in_use();  // results do not depend on it
    if (count == 1) {
        Worker alone(*this, 0, 1);
        alone.take_part(work);
    } else {
        gather(began);
        run_team(work);
    }
    const Clock::time_point now = Clock::now();
    choice_.settle(seconds(now.time_since_epoch()), seconds(now - began), team_->useful_s(count));
}

void Pool::gather(Clock::time_point now) {
    const int core = current_core();
    if (core != team_->caller_core && !team_->is_crowded) {
        team_->caller_core = core;
        for (std::thread& thread : team_->threads) keep_off(thread, core);
    }
    if (num_threads_ == 2 && !team_->is_crowded && now - team_->last_measured > kTimeBetweenMeasurements) {
        measure_distance();
    }
}

void Pool::run_team(const std::function<void(Worker&)>& work) {
    Worker caller(*this, 0, num_threads_);
    team_->call(&work);
    caller.take_part(work);  // `work` lives in the caller's frame; all workers have left it behind the last barrier
}

void Pool::measure_distance() {
    Clock::duration shortest = Clock::duration::max();
    run_team([&](Worker& worker) {
        for (int sample = 0; sample < kSamples; ++sample) {
            worker.barrier();
            const Clock::time_point began = Clock::now();
            for (int i = 0; i < kBarriersPerSample; ++i) worker.barrier();
            if (worker.index == 0) shortest = std::min(shortest, Clock::now() - began);
        }
    });
    distance_ns_ = std::chrono::duration<double, std::nano>(shortest).count() / kBarriersPerSample;
    team_->last_measured = Clock::now();
}

void Pool::forget_team() {
    // The threads stayed in the parent. Their handles cannot be joined here, so they leak.
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
