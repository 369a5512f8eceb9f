// Whether the whole team makes the next run or its caller alone, learned from how runs went.
//
// Other processes take cores away. A team then waits at its barriers for whoever has none, and its caller alone may be
// faster. What counts is useful time: the processor time of all workers without what they waited, per second that
// passed. Two workers in peace make nearly two seconds of it per second, the caller alone at most one.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>

namespace headlong {

class TeamChoice {
public:
    bool is_alone() const { return is_alone_; }

    // Learn from a run, made as `is_alone` said, that took so many seconds until `now_s`.
    void settle(double now_s, double took_s, double useful_s) {
        if (is_alone_) {
            alone_.add(took_s, useful_s);
            alone_seen_s_ = now_s;
            if (now_s < until_s_) return;
            is_alone_ = false;  // see how the team does now
            team_ = {};
            team_since_s_ = now_s;
            return;
        }
        team_.add(took_s, useful_s);
        if (now_s - team_since_s_ > kTimeToForget) next_alone_s_ = kFirstAlone;
        // Alone there is a full core at best. How much there really is, is known for a while only.
        const double alone = now_s - alone_seen_s_ < kTimeToForget ? alone_.rate() : 1.0;
        if (team_.seen_s() < kEnough || team_.rate() >= kMargin * alone) return;
        is_alone_ = true;
        alone_ = {};
        until_s_ = now_s + next_alone_s_;
        next_alone_s_ = std::min(2 * next_alone_s_, kMostAlone);
    }

private:
    // Useful time per second, lately.
    class Pace {
    public:
        void add(double took_s, double useful_s) {
            const double kept = std::exp(-took_s / kMemory);
            seen_s_ = kept * seen_s_ + took_s;
            useful_s_ = kept * useful_s_ + useful_s;
        }
        double seen_s() const { return seen_s_; }
        double rate() const { return useful_s_ / seen_s_; }

    private:
        double seen_s_ = 0.0, useful_s_ = 0.0;
    };

    // In seconds. Other processes get a core for some milliseconds at a time, so less than `kEnough` is chance.
    static constexpr double kMemory = 0.1, kEnough = 0.02;
    // The caller stays alone for twice as long each time that the team proves slower again soon.
    static constexpr double kFirstAlone = 0.1, kMostAlone = 3.2, kTimeToForget = 2.0;
    static constexpr double kMargin = 0.9;  // what is nearly as fast stays

    std::atomic<bool> is_alone_ = false;  // others may look at it meanwhile
    Pace team_, alone_;
    double until_s_ = 0.0, next_alone_s_ = kFirstAlone;
    double team_since_s_ = 0.0, alone_seen_s_ = -kTimeToForget;
};

}  // namespace headlong
