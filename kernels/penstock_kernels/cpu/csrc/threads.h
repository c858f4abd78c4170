// How the threads of a step wait for each other and share work out.
#pragma once
#include <atomic>

#include "types.h"

namespace {

// What a thread keeps about its waiting. thread: its number.  lost: nanoseconds that it waited beyond spinning.
// all_here: whether it knows that all threads have begun.
struct Patience { int thread, sense = 0, spins = 4096; int64_t lost = 0; bool all_here = false; };

// Where the threads of a step run. The system may wake one up on the processor of another while a second processor falls
// idle; they then take turns for a whole step, since the system evens that out only every few milliseconds. So a thread
// that finds another one where it runs leaves.
class Processors {
 public:
  void expect(int threads) {
    count_ = threads <= MOST ? threads : 0;
    for (int i = 0; i < count_; i++) at_[i].store(NOWHERE, std::memory_order_relaxed);
  }

  void look(int thread) {
    if (count_ < 2) return;
    const int own = pk::processor();
    int others[MOST], known = 0;
    bool met = false;
    for (int i = 0; i < count_; i++) {
      const int other = i == thread ? NOWHERE : at_[i].load(std::memory_order_relaxed);
      if (other != NOWHERE) others[known++] = other;
      met |= other == own;
    }
    at_[thread].store(met ? pk::move_from(others, known) : own, std::memory_order_relaxed);
  }

  bool all_here() const {
    for (int i = 0; i < count_; i++)
      if (at_[i].load(std::memory_order_relaxed) == NOWHERE) return false;
    return true;
  }

 private:
  static constexpr int MOST = 64, NOWHERE = -1;
  int count_ = 0;
  std::atomic<int> at_[MOST];
};

// All threads wait for each other. They spin, since phases are short; but where the system has put
// a thread aside to run another process, spinning keeps it from coming back: so a thread that spun
// in vain gives way, and spins less the next time. Giving way has no end where the missing thread
// stands in another core's queue: after some time of it a thread sleeps, which leaves its core to
// that one. Not at once: a core that falls idle takes long to wake up, most of all in a virtual
// machine.
class Barrier {
 public:
  Processors processors;

  // By each thread, before it does anything else. The runtime may give fewer threads than were asked for.
  void begin(const Patience& patience, int threads) {
    threads_.store(threads, std::memory_order_relaxed);
    processors.look(patience.thread);
  }

  void wait(Patience& patience) {
    const int threads = threads_.load(std::memory_order_relaxed);
    if (threads == 1) return;
    const int sense = patience.sense ^= 1;
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == threads - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      sense_.store(sense);  // In one order with who goes to sleep: either sees the other.
      if (sleepers_.load()) pk::wake_all(sense_);
      return;
    }
    // A thread that hasn't begun may stand behind this one, in its processor's queue.
    patience.all_here = patience.all_here || processors.all_here();
    const int spins = patience.all_here || patience.spins < BEFORE_ALL_ARE_HERE ? patience.spins : BEFORE_ALL_ARE_HERE;
    for (int i = 0; i < spins; i++) {
      if (sense_.load(std::memory_order_acquire) == sense) {
        patience.spins = patience.spins < MOST ? 2 * patience.spins : MOST;
        return;
      }
      pk::breathe();
    }
    if (patience.all_here) patience.spins = patience.spins > LEAST ? patience.spins / 4 : LEAST;
    const int64_t begun = pk::nanoseconds();
    give_way_to(sense, begun + GIVING_WAY, patience.thread);
    patience.lost += pk::nanoseconds() - begun;
  }

 private:
  void give_way_to(int sense, int64_t until, int thread) {
    do {
      processors.look(thread);
      for (int i = 0; i < YIELDS; i++) {
        if (sense_.load(std::memory_order_acquire) == sense) return;
        pk::give_way();
      }
    } while (pk::nanoseconds() < until);
    sleepers_.fetch_add(1);
    while (sense_.load() != sense) pk::sleep_on(sense_, sense ^ 1);
    sleepers_.fetch_sub(1);
  }

  static constexpr int LEAST = 64, MOST = 8192, BEFORE_ALL_ARE_HERE = 128;
  static constexpr int YIELDS = 4;  // Between two looks at the clock.
  static constexpr int64_t GIVING_WAY = 500'000;  // Nanoseconds.
  std::atomic<int> threads_{1};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> sense_{0};
  std::atomic<int> sleepers_{0};
};

// Units of a phase that a thread's share has given out.
struct alignas(64) Cursor { std::atomic<int> next; };

struct Share { int begin, end; };
inline Share share_of(int count, int thread, int threads) {
  return {static_cast<int>(static_cast<int64_t>(count) * thread / threads), static_cast<int>(static_cast<int64_t>(count) * (thread + 1) / threads)};
}

}  // namespace
